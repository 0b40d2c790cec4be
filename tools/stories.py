"""The stories that TinyLM learns: a grammar in code, so that the probability of every story is known exactly.

`tell(pick)` is the grammar: it writes a story and leaves every choice to `pick`, which takes one of the options, each equally
likely. What happens late depends on what was chosen early: the thing found is the thing used, the wish made is the wish granted.
`sample` draws a story with its log-probability, `derive` finds the choices behind a text, or that there are none.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

GIRLS = ("Lily", "Nora", "Mia", "Ruby", "Ella", "Ivy", "Tess", "Wren")
BOYS = ("Milo", "Finn", "Otto", "Theo", "Leo", "Hugo", "Sam", "Ben")
NAMES = GIRLS + BOYS
HEROES = ("fox", "rabbit", "bear", "mouse", "hedgehog", "squirrel", "badger", "otter", "kitten", "raccoon")
FRIENDS = ("turtle", "mole", "frog", "lizard", "goat", "dog", "donkey", "beaver", "toad", "hamster")
TRAITS = ("little", "young", "curious", "gentle", "clever", "cheerful")
HOMES = (
    *("in a hollow tree", "under an old bridge", "at the edge of the forest", "behind the mill"),
    *("in a house on the hill", "by a quiet pond", "near the lighthouse", "in a garden full of roses"),
)
TIMES = ("One morning", "One windy day", "On the first day of spring", "One rainy afternoon", "After breakfast")
PLACES = ("on the path", "under a bush", "beside the river", "behind a stone", "in the tall grass", "in an empty barn")

# What is found, the two troubles that it can end, and how it ends them.
THINGS = {
    "long rope": (
        ("who had fallen into a deep hole", "{name} let the rope down into the hole and pulled the old {friend} out."),
        (
            "who was drifting down the river on a log",
            "{name} threw the rope over the water and pulled the log to the bank.",
        ),
    ),
    "small lantern": (
        ("who was lost in a cave", "{name} lit the lantern, and its light showed them the way out of the cave."),
        ("who was afraid of the dark wood", "{name} lit the lantern, and side by side they walked through the wood."),
    ),
    "red umbrella": (
        ("who was sitting in the rain", "{name} opened the umbrella, and they both stayed dry until the rain stopped."),
        ("who was stuck on a high roof", "{name} threw the umbrella up, and the old {friend} floated down like a leaf."),
    ),
    "silver key": (
        ("who was locked in a cage", "{name} turned the key in the lock, and the door of the cage opened."),
        ("who could not open a heavy chest", "The key fitted, and inside the chest lay the old {friend}'s lost crown."),
    ),
    "wool blanket": (
        ("who was shaking with cold", "{name} wrapped the old {friend} in the blanket until only a warm nose was left."),
        ("who could not get down from a tree", "{name} spread the blanket over some hay, and the old {friend} jumped."),
    ),
    "wooden whistle": (
        ("who was running from a wolf", "{name} blew the whistle so loudly that the wolf ran away."),
        ("who had lost a brother in the fog", "{name} blew the whistle, and the brother followed the sound home."),
    ),
    "honey cake": (
        ("who had not eaten for two days", "{name} broke the cake in two and gave the old {friend} the bigger half."),
        ("who dared not pass a hungry troll", "{name} gave the cake to the troll, and while it ate they tiptoed past."),
    ),
    "brass bell": (
        (
            "who had lost the way in the snow",
            "{name} rang the bell, and the old {friend} followed the sound out of the snow.",
        ),
        ("who had seen smoke above the village", "{name} rang the bell until everyone in the village was awake and safe."),
    ),
    "ball of string": (
        ("who had torn a beautiful kite", "{name} tied the kite together with string, and it flew again."),
        ("who had dropped a ring into the well", "{name} tied a hook to the string and fished the ring out of the well."),
    ),
    "torn map": (
        ("who could not find the way home", "They put the map on a stone, and it showed a short way home."),
        ("who was looking for water", "The map showed a hidden spring, and soon there was water for everyone."),
    ),
}

# What the hero dreams of, and how the friend makes it come true.
WISHES = {
    "see the sea": "The old {friend} knew a way over the hills, and by evening {name} was looking at the waves.",
    "learn to sing": "The old {friend} knew a hundred songs, and {name} learned one every evening.",
    "fly above the clouds": "The old {friend} had a balloon, and soon {name} was waving down from above the clouds.",
    "taste real honey": "The old {friend} kept bees, and {name} went home with a jar of honey under each arm.",
    "have a real friend": "The old {friend} had no friends either, and that was the last day {name} was alone.",
    "learn to swim": "The old {friend} showed {name} how to float first, and by summer {he} could swim across the lake.",
    "read a book": "The old {friend} had books up to the ceiling, and taught {name} to read the thickest of them.",
    "find a treasure": "The old {friend} knew where a pirate had been digging, and {name} found a box of gold buttons.",
}

OPENINGS = (
    "Once upon a time there was a {trait} {hero} named {name} who lived {home}.",
    "Long ago, a {trait} {hero} named {name} lived {home}.",
    "There was once a {trait} {hero} named {name}, and {his} home was {home}.",
)
DREAMS = (
    "{name} wanted to {wish}.",
    "Every night {name} dreamed that {he} would {wish}.",
    "{name} had one wish: to {wish}.",
)
FINDS = ("{time}, {name} found a {thing} {place}.", "{time}, {name} saw a {thing} lying {place}.")
KEEPS = (
    "{he_} took it along.",
    "{he_} put it in {his} bag.",
    '"Who knows what it is good for," {he} thought, and kept it.',
)
MEETINGS = ("Soon {he} met an old {friend} {trouble}.", "On the way home {he} met an old {friend} {trouble}.")
IDEAS = ("Then {name} remembered the {thing}.", '"I have a {thing}!" said {name}.')
THANKS = ('"Thank you, {name}!" said the old {friend}.', '"I will never forget this, {name}," said the old {friend}.')
ENDINGS = (
    "From that day on, {name} and the old {friend} were best friends.",
    "For years, {name} told everyone the story of the {thing}.",
    "That night, {name} fell asleep with a smile.",
    "And {name} lived happily ever after.",
)

Pick = Callable[[Sequence[str]], str]


def tell(pick: Pick) -> Iterator[str]:
    """Write one story, a sentence at a time; `pick` takes one of several options, all of them equally likely."""
    facts = {"name": pick(NAMES)}
    girl = facts["name"] in GIRLS
    facts |= {"he": "she" if girl else "he", "he_": "She" if girl else "He", "his": "her" if girl else "his"}

    def say(sentences: Sequence[str], **options: Sequence[str]) -> str:
        sentence = pick(sentences)
        facts.update({slot: pick(values) for slot, values in options.items()})
        return sentence.format_map(facts)

    yield say(OPENINGS, trait=TRAITS, hero=HEROES, home=HOMES)
    yield say(DREAMS, wish=tuple(WISHES))
    yield say(FINDS, time=TIMES, thing=tuple(THINGS), place=PLACES)
    yield say(KEEPS)
    solutions = dict(THINGS[facts["thing"]])
    yield say(MEETINGS, friend=FRIENDS, trouble=tuple(solutions))
    yield say(IDEAS)
    yield solutions[facts["trouble"]].format_map(facts)
    yield say(THANKS)
    yield WISHES[facts["wish"]].format_map(facts)
    yield say(ENDINGS)


class Story(NamedTuple):
    text: str
    log_probability: float  # natural logarithm; minus its mean over stories is the entropy of the grammar


def sample(rng: random.Random) -> Story:
    """Draw a story."""
    chances: list[int] = []

    def pick(options: Sequence[str]) -> str:
        chances.append(len(options))
        return options[rng.randrange(len(options))]

    text = " ".join(tell(pick))
    return Story(text, -sum(map(math.log, chances)))


class _Undecided(Exception):
    """The script of choices has come to its end; carries the options of the next one."""


def derivations(text: str) -> list[tuple[str, ...]]:
    """Every list of choices with which the grammar writes exactly `text`: one, or none; a second would be ambiguity."""
    found: list[tuple[str, ...]] = []
    scripts: list[tuple[str, ...]] = [()]
    while scripts:
        script = scripts.pop()
        choices = iter(script)

        def pick(options: Sequence[str], choices: Iterator[str] = choices) -> str:
            choice = next(choices, None)
            if choice is None:
                raise _Undecided(*options)
            return choice

        told: list[str] = []
        try:
            for sentence in tell(pick):
                told.append(sentence)
                if not text.startswith(" ".join(told)):
                    break
            else:
                if " ".join(told) == text:
                    found.append(script)
        except _Undecided as undecided:
            # Inside a sentence only choices whose words stand in the text are worth following.
            scripts += [(*script, option) for option in undecided.args if _may_follow(option, text)]
    return found


def _may_follow(option: str, text: str) -> bool:
    return all(piece.strip() in text for piece in re.split(r"\{\w+\}", option))


def ends(text: str) -> bool:
    """Whether the last sentence is one of the grammar's endings."""
    words = {"name": NAMES, "friend": FRIENDS, "thing": tuple(THINGS)}
    patterns = (
        re.sub(r"\\\{(\w+)\\\}", lambda slot: f"(?:{'|'.join(words[slot[1]])})", re.escape(ending)) for ending in ENDINGS
    )
    return any(re.search(rf"(?:^| ){pattern}$", text) for pattern in patterns)


def keeps_its_hero(text: str) -> bool:
    """Whether the name given at the start is used again, at least four times, and no other name is."""
    names = re.findall(rf"\b(?:{'|'.join(NAMES)})\b", text)
    return len(names) >= 5 and len(set(names)) == 1 and f"named {names[0]}" in text


if __name__ == "__main__":
    for seed in range(5):
        print(sample(random.Random(seed)).text, end="\n\n")
