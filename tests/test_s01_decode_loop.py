"""s01: a language model gives a score for every possible next token; a loop around it makes a text."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from kit.tinylm import TinyLM
from s01_decode_loop import (
    Sampling,
    StopStrings,
    complete,
    generate,
    keep_top,
    sample,
    softmax,
    work_without_cache,
)
from support import expect, mismatch

SCORES = "s01_decode_loop/Scores become probabilities"
TAIL = "s01_decode_loop/Cutting the tail"
DRAW = "s01_decode_loop/Drawing a token"
LOOP = "s01_decode_loop/The loop"
ENDS = "s01_decode_loop/Where a text ends"
COST = "s01_decode_loop/What it costs"
ONE_CALL_A_TOKEN = "three tokens come out of three calls: after the last one there is nothing to ask"


def shown(values) -> list[float]:
    """Probabilities as the messages show them."""
    return [round(float(value), 4) for value in values]


def scores(*probabilities: float):
    """Logits whose softmax these are."""
    return np.log(np.array(probabilities, "float64")).astype("float32")


class Dice(Random):
    """Random numbers that a test chooses; `rolled` counts how many were asked for."""

    def __init__(self, *numbers: float):
        super().__init__(0)
        self.numbers, self.rolled = list(numbers), 0

    def random(self) -> float:
        self.rolled += 1
        return self.numbers.pop(0) if self.numbers else 0.5


class Script:
    """A model that answers with a fixed list of tokens, whatever the prompt. Tokens are letters: 1 is a, 2 is b; 0 ends."""

    eos_id = 0
    config = SimpleNamespace(max_model_len=40)
    tokenizer = SimpleNamespace(text_of=lambda token: "" if token == 0 else chr(96 + token))

    def __init__(self, prompt: int, answer: list[int], pieces: dict[int, str] | None = None):
        self.prompt, self.answer, self.calls = prompt, answer, []
        if pieces:
            self.tokenizer = SimpleNamespace(text_of=lambda token: pieces.get(token, ""))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 96 for letter in text]

    def logits(self, tokens):
        self.calls.append(list(tokens))
        rows = np.zeros((len(tokens), 30), "float32")
        rows[:, 29] = 1  # what every row but the last would choose
        made = len(tokens) - self.prompt
        rows[-1, self.answer[made] if made < len(self.answer) else 28] = 9
        return rows


class TestSoftmax:
    """Exercise 1: softmax(logits)."""

    def check(self, logits, want, cause):
        expect(f"logits {logits}", "softmax()", shown(softmax(np.array(logits, "float32"))), shown(want), cause, SCORES)

    def test_equal_scores_are_equally_probable(self):
        self.check([3, 3, 3, 3], [0.25] * 4, "each weight is exp(score), divided by the sum of all weights")

    def test_a_score_that_is_ln_2_higher_is_twice_as_probable(self):
        cause = "exp(score), not the score itself: differences of scores are ratios of probabilities"
        self.check([0, math.log(2), math.log(5)], [1 / 8, 2 / 8, 5 / 8], cause)

    def test_large_scores_do_not_overflow(self):
        cause = "exp(1000) is infinite: subtract the largest score first, it changes no probability"
        with np.errstate(all="ignore"):
            self.check([1000, 1000 + math.log(3)], [0.25, 0.75], cause)

    def test_very_low_scores_do_not_vanish(self):
        cause = "exp(-1000) is 0, and 0 / 0 is no number: subtract the largest score first"
        with np.errstate(all="ignore"):
            self.check([-1000, -1000], [0.5, 0.5], cause)

    def test_it_computes_in_float64(self):
        got = str(softmax(np.array([0, 1], "float32")).dtype)
        expect("float32 logits", "dtype", got, "float64", "convert first, or a running sum of 768 terms drifts", SCORES)

    def test_it_leaves_the_logits_alone(self):
        logits = np.array([1.0, 2.0, 3.0])
        softmax(logits)
        cause = "`logits -= …` and out=logits write into the caller's array: make a new one"
        expect("logits [1 2 3]", "logits afterwards", list(logits), [1.0, 2.0, 3.0], cause, SCORES)


class TestKeepTop:
    """Exercise 2: keep_top(probabilities, top_k, top_p)."""

    def check(self, probabilities, k, p, want, cause):
        got = keep_top(np.array(probabilities, "float64"), k, p)
        where = f"probabilities {probabilities}, top_k {k}, top_p {p}"
        expect(where, "keep_top()", shown(got), shown(want), cause, TAIL)

    def test_without_a_cut_nothing_changes(self):
        self.check([0.125, 0.5, 0.125, 0.25], 0, 1.0, [0.125, 0.5, 0.125, 0.25], "top_k 0 and top_p 1 cut nothing")

    def test_top_k_keeps_the_k_most_probable(self):
        cause = "keep the two most probable where they stand, and divide by their sum, 0.75"
        self.check([0.125, 0.5, 0.125, 0.25], 2, 1.0, [0, 2 / 3, 0, 1 / 3], cause)

    def test_top_k_beyond_the_vocabulary_keeps_all(self):
        self.check([0.75, 0.25], 50, 1.0, [0.75, 0.25], "fewer tokens than top_k: keep all that there are")

    def test_top_p_keeps_the_token_that_crosses_the_line(self):
        cause = "0.5 is less than 0.6, so the next one, 0.25, is kept too: the fewest that have *at least* top_p together"
        self.check([0.125, 0.5, 0.125, 0.25], 0, 0.6, [0, 2 / 3, 0, 1 / 3], cause)

    def test_top_p_stops_when_it_is_reached_exactly(self):
        cause = "0.5 + 0.25 is 0.75, which is at least top_p: no third token"
        self.check([0.125, 0.5, 0.125, 0.25], 0, 0.75, [0, 2 / 3, 0, 1 / 3], cause)

    def test_one_token_always_stays(self):
        cause = "the most probable has 0.5, more than top_p: it crosses the line and is kept"
        self.check([0.125, 0.5, 0.125, 0.25], 0, 0.01, [0, 1, 0, 0], cause)

    def test_of_equal_ones_the_lower_id_stays(self):
        cause = 'sort so that equal ones keep their order: np.argsort(-p, kind="stable")'
        self.check([0.25, 0.25, 0.25, 0.25], 2, 1.0, [0.5, 0.5, 0, 0], cause)

    def test_top_p_looks_at_what_top_k_left(self):
        cause = "top_k first: of two tokens the first has 0.5 / 0.75 = 0.67, enough for top_p 0.6"
        self.check([0.5, 0.25, 0.125, 0.125], 2, 0.6, [1, 0, 0, 0], cause)

    def test_it_leaves_the_probabilities_alone(self):
        probabilities = np.array([0.5, 0.25, 0.25])
        keep_top(probabilities, 1, 1.0)
        cause = "write into a new array of zeros, not into the caller's"
        expect("top_k 1", "probabilities afterwards", shown(probabilities), [0.5, 0.25, 0.25], cause, TAIL)

    @given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.integers(0, 14), st.integers(1, 100))
    def test_what_is_kept_is_the_smallest_top_that_has_enough(self, weights, k, percent):
        p = np.array(weights) / sum(weights)
        top = sorted(range(len(p)), key=lambda i: -p[i])[: k or None]
        total, enough = sum(p[top]), percent / 100
        sums = [sum(p[top[: n + 1]]) / total for n in range(len(top))]
        assume(all(abs(one - enough) > 1e-9 for one in sums[:-1]))
        n = next((n for n, one in enumerate(sums, 1) if one >= enough), len(top))
        kept = [i in top[:n] for i in range(len(p))]
        want = [p[i] / sum(p[top[:n]]) if kept[i] else 0 for i in range(len(p))]
        self.check([float(x) for x in p], k, enough, want, "top_k, scale, top_p, scale: kept tokens keep their ratios")


class TestSample:
    """Exercise 3: sample(logits, sampling, rng)."""

    def check(self, logits, sampling, dice, want, cause):
        got = sample(np.array(logits, "float32"), sampling, Dice(*dice))
        where = f"probabilities {shown(np.exp(logits) / np.exp(logits).sum())}, {sampling}, random number {dice}"
        expect(where, "sample()", got, want, cause, DRAW)

    def test_greedy_takes_the_highest_score(self):
        self.check([0.5, 2.0, 1.0], Sampling(0), [], 1, "temperature 0: the id with the highest score")

    def test_greedy_takes_the_lowest_id_of_equal_ones(self):
        self.check([1.0, 2.0, 2.0], Sampling(0), [], 1, "np.argmax gives the first of equal ones")

    def test_greedy_asks_for_no_random_number(self):
        dice = Dice(0.9)
        sample(scores(0.5, 0.5), Sampling(0), dice)
        expect("temperature 0", "random numbers drawn", dice.rolled, 0, "return before you ask `rng`", DRAW)

    def test_the_random_number_picks_by_running_sum(self):
        for number, want in ((0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.999, 3)):
            cause = "running sums 0.5 0.75 0.875 1: the first that is greater than the number"
            self.check(scores(0.5, 0.25, 0.125, 0.125), Sampling(1), [number], want, cause)

    def test_the_temperature_comes_before_the_cut(self):
        cause = "temperature 2 makes 0.52 0.28 0.20 of them, of which top_p 0.6 keeps two: divide first, cut then"
        self.check(scores(0.7, 0.2, 0.1), Sampling(2, 0, 0.6), [0.9], 1, cause)

    def test_a_low_temperature_sharpens(self):
        cause = "temperature 0.5 divides the scores by 0.5: 0.5 0.25 0.25 becomes 0.67 0.17 0.17"
        self.check(scores(0.5, 0.25, 0.25), Sampling(0.5), [0.6], 0, cause)

    def test_a_high_temperature_flattens(self):
        cause = "temperature 2 divides the scores by 2: 0.9 0.1 becomes 0.75 0.25"
        self.check(scores(0.9, 0.1), Sampling(2), [0.8], 1, cause)

    def test_a_token_that_was_cut_is_never_drawn(self):
        cause = "token 0 has probability 0 and a running sum of 0, which is not *greater* than 0"
        self.check(scores(0.2, 0.7, 0.1), Sampling(1, 1), [0.0], 1, cause)

    def test_rounding_at_the_end_still_gives_a_token(self):
        highest = 1 - 2**-53  # the largest number that random() can return
        cause = "ten times 0.1 add up to less than 1: beyond the last sum it is the last possible token"
        try:
            self.check([0.0] * 10, Sampling(1), [highest], 9, cause)
            self.check([0.0] * 10 + [-99.0], Sampling(1, 10), [highest], 9, cause)
        except IndexError as error:
            expect("ten equal tokens", "sample() raised", f"IndexError: {error}", "token 9", cause, DRAW)

    def test_one_random_number_a_token(self):
        dice = Dice(0.1, 0.2)
        sample(scores(0.5, 0.5), Sampling(1, 2, 0.9), dice)
        cause = "exactly one call of rng.random(): else a text depends on how it was computed, not on its seed"
        expect("temperature 1", "random numbers drawn", dice.rolled, 1, cause, DRAW)

    def test_a_token_is_a_plain_int(self):
        kinds = [type(sample(scores(0.1, 0.9), Sampling(t), Dice(0.5))).__name__ for t in (0, 1)]
        cause = "NumPy's numbers are not Python's: int(), or JSON can't write it"
        expect("greedy and drawn", "types", kinds, ["int", "int"], cause, DRAW)

    def test_many_draws_follow_the_probabilities(self):
        rng, counts = Random(7), [0, 0, 0]
        for _ in range(2000):
            counts[sample(scores(0.6, 0.3, 0.1), Sampling(1), rng)] += 1
        close = all(abs(count / 2000 - p) < 0.04 for count, p in zip(counts, (0.6, 0.3, 0.1)))
        want = counts if close else "about [1200, 600, 200]"
        expect("2,000 draws", "counts", counts, want, "draw by running sum, with one number from `rng` each", DRAW)


class TestGenerate:
    """Exercise 4: generate(model, prompt, max_tokens, sampling, rng)."""

    def test_every_call_gets_all_tokens_so_far(self):
        model = Script(2, [3, 4, 5])
        list(generate(model, [1, 2], 3))
        cause = "append each token: the model remembers nothing between calls"
        if len(model.calls) > 3:
            cause = ONE_CALL_A_TOKEN
        expect("prompt 1 2, answer 3 4 5", "calls", model.calls, [[1, 2], [1, 2, 3], [1, 2, 3, 4]], cause, LOOP)

    def test_the_last_token_is_never_fed(self):
        for answer, most in (([3, 4, 5], 3), ([3, 4, 0], 10)):
            model = Script(2, answer)
            list(generate(model, [1, 2], most))
            where = f"answer {answer}, max_tokens {most}"
            expect(where, "calls of the model", len(model.calls), 3, ONE_CALL_A_TOKEN, LOOP)

    def test_it_ends_with_the_eos_token(self):
        got = list(generate(Script(2, [3, 4, 0, 5]), [1, 2], 10))
        cause = "yield the token first, then look whether it was model.eos_id: it is part of the output"
        expect("the model says 3 4 eos 5", "generate()", got, [3, 4, 0], cause, LOOP)

    def test_it_makes_at_most_max_tokens(self):
        got = list(generate(Script(2, [3, 4, 5, 6]), [1, 2], 3))
        expect("max_tokens 3", "generate()", got, [3, 4, 5], "one token a round, max_tokens rounds at most", LOOP)

    def test_a_token_is_there_before_the_next_is_computed(self):
        model = Script(2, [3, 4, 5])
        first = next(iter(generate(model, [1, 2], 3)))
        cause = "yield inside the loop: a list at the end is no stream"
        expect("the first token was taken", "(token, calls so far)", (first, len(model.calls)), (3, 1), cause, LOOP)

    def test_the_prompt_is_left_alone(self):
        prompt = [1, 2]
        list(generate(Script(2, [3, 4]), prompt, 2))
        expect("prompt 1 2", "prompt afterwards", prompt, [1, 2], "work on a copy: list(prompt)", LOOP)

    def test_an_eos_in_the_prompt_ends_nothing(self):
        got = list(generate(Script(2, [3, 4]), [0, 1], 2))
        expect("prompt eos 1", "generate()", got, [3, 4], "only a token that the model makes can end the text", LOOP)

    def test_one_source_of_random_numbers_for_the_whole_text(self):
        class Even(Script):
            def logits(self, tokens):
                return np.zeros((len(tokens), 4), "float32")

        got = list(generate(Even(1, []), [1], 4, Sampling(1), Dice(0.9, 0.3, 0.6, 0.9)))
        cause = "pass the same `rng` to every `sample`: a new Random(seed) for each token rolls the same number again"
        expect("four equal tokens, random numbers .9 .3 .6 .9", "generate()", got, [3, 1, 2, 3], cause, LOOP)

    def test_without_a_source_it_is_random_0(self):
        class Even(Script):
            def logits(self, tokens):
                return np.zeros((len(tokens), 20), "float32")

        got, want = (list(generate(Even(1, []), [1], 6, Sampling(1), rng)) for rng in (None, Random(0)))
        expect("temperature 1, rng None", "generate()", got, want, "`rng or Random(0)`, made once", LOOP)

    def test_a_real_model_tells_its_most_probable_words(self):
        model = TinyLM.load()
        tokens = model.encode("Once upon a time")
        for token in generate(model, tokens, 4):
            want = int(model.logits(tokens)[-1].argmax())
            cause = "the scores of the next token stand in the last row of the logits"
            expect(f"TinyLM after {model.decode(tokens)!r}", "token", token, want, cause, LOOP)
            tokens.append(token)


class TestStopStrings:
    """Exercise 5: StopStrings.feed(new)."""

    def run(self, stops, pieces, want, cause):
        """want: what is shown after each piece; a `|` behind the piece that ends the text."""
        watch, got = StopStrings(stops), []
        for piece in pieces:
            got.append(watch.feed(piece) + "|" * (watch.stopped is not None))
            if watch.stopped is not None:
                break
        expect(f"stop strings {stops}, tokens {pieces}", "shown at each token (| = stopped)", got, want, cause, ENDS)
        return watch

    def test_without_stop_strings_everything_is_shown_at_once(self):
        self.run([], ["On", "ce"], ["On", "ce"], "nothing can begin a stop string, so nothing is held back")

    def test_a_stop_string_ends_the_text_and_is_not_shown(self):
        cause = "'the ' can't begin 'cat': hold only an end with which a stop string begins"
        self.run(["cat"], ["the "], ["the "], cause)
        watch = self.run(
            ["cat"], ["the ", "cat", " sat"], ["the ", "|"], "what stands before the stop string is shown, it is not"
        )
        expect("stop string 'cat'", "stopped", watch.stopped, "cat", "say which stop string it was", ENDS)

    def test_it_may_begin_and_end_inside_one_token(self):
        cause = "look for it anywhere in the text, not at its end only"
        self.run(["DE"], ["DEF", "G"], ["|"], cause)
        self.run(["DE"], ["ABDEF"], ["AB|"], cause)

    def test_it_may_span_several_tokens(self):
        cause = "hold back what may begin a stop string: what has been shown can't be taken back"
        self.run(["DEFGHIJ"], ["DEF", "G", "HI", "J"], ["", "", "", "|"], cause)

    def test_it_may_begin_in_the_middle_of_a_token(self):
        cause = "ABD ends with D, the beginning of DEF: show AB, hold D"
        self.run(["DEF"], ["ABD", "EF"], ["AB", "|"], cause)

    def test_what_was_held_is_shown_when_the_match_breaks(self):
        cause = "DEFX can't become DEFGHIJ any more: show all of it"
        self.run(["DEFGHIJ"], ["DEF", "X"], ["", "DEFX"], cause)

    def test_after_a_broken_match_a_new_one_may_have_begun(self):
        cause = "aab breaks with the second a, but that a begins it again: hold the longest end that begins a stop string"
        self.run(["aab"], ["a", "a", "a", "b"], ["", "", "a", "|"], cause)

    def test_it_holds_no_more_than_may_begin_a_stop_string(self):
        cause = "only 'wh' may become 'who': holding back longest - 1 letters always would delay every text"
        self.run([" who", "who"], ["a long sentence", " wh", "en"], ["a long sentence", "", " when"], cause)

    def test_of_two_stop_strings_the_one_that_is_complete_first_counts(self):
        cause = "'b' is complete before 'c' whatever their order in the list: compare where they end"
        self.run(["c", "b"], ["abcd"], ["a|"], cause)

    def test_complete_first_is_not_the_one_that_begins_first(self):
        cause = "letter by letter, 'b' is complete one letter before 'abc': one long token must give the same"
        self.run(["abc", "b"], ["abc"], ["a|"], cause)

    def test_of_those_that_end_together_the_first_in_the_list_counts(self):
        cause = "both are complete at the same letter: the order in the list decides"
        self.run(["b", "ab"], ["xab"], ["xa|"], cause)
        self.run(["ab", "b"], ["xab"], ["x|"], cause)

    def test_nothing_is_held_after_the_stop(self):
        watch = self.run(["cat"], ["a cat ca"], ["a |"], "what stands behind the stop string is dropped")
        got = watch.rest()
        expect("the text ended at 'cat'", "rest()", got, "", "empty `held` when a stop string was found", ENDS)

    def test_a_token_without_text_changes_nothing(self):
        self.run(["cat"], ["ca", "", "t"], ["", "", "|"], "what is held stays held: '' breaks no match")

    @given(st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3), st.lists(st.text("ab ", max_size=5), max_size=6))
    def test_the_cut_into_tokens_does_not_matter(self, stops, pieces):
        def run(parts):
            watch, text, longest = StopStrings(stops), "", max(map(len, stops), default=1)
            for part in parts:
                text += watch.feed(part)
                if watch.stopped is not None:
                    break
                where = f"stop strings {stops}, tokens {parts}"
                cause = "at most longest - 1 letters may still become a stop string"
                expect(where, "longest held", max(len(watch.held), longest - 1), longest - 1, cause, ENDS)
            return text + watch.rest(), watch.stopped

        letters = list("".join(pieces))
        text = ""
        want = ("".join(pieces), None)
        for letter in letters:  # the slow and obvious way
            text += letter
            ended = [stop for stop in stops if text.endswith(stop)]
            if ended:
                want = (text[: -len(ended[0])], ended[0])
                break
        cause = "the text ends where, letter by letter, the first stop string is complete"
        for parts in (pieces, letters):
            expect(f"stop strings {stops}, tokens {parts}", "(text, stopped)", run(parts), want, cause, ENDS)


class TestWorkWithoutCache:
    """Exercise 6: work_without_cache(prompt, new)."""

    def check(self, prompt, new, want, cause):
        where = f"a prompt of {prompt}, {new} new tokens"
        got = work_without_cache(prompt, new)
        if isinstance(got, float) and got == want:
            mismatch(where, "work_without_cache()", got, want, "use //: a whole number", COST)
        expect(where, "work_without_cache()", got, want, cause, COST)

    def test_the_first_token_costs_the_prompt(self):
        self.check(5, 1, 5, "one call, which computes the prompt: its result is the first new token")

    def test_the_second_costs_the_prompt_and_the_first(self):
        self.check(5, 2, 5 + 6, "the second call computes the prompt and one new token again")

    def test_it_grows_with_the_square(self):
        self.check(10, 1000, 10 * 1000 + 999 * 1000 // 2, "prompt a call, plus 0 + 1 + … + (new - 1)")

    def test_no_tokens_cost_nothing(self):
        self.check(5, 0, 0, "no token, no call")

    @given(st.integers(1, 9), st.integers(1, 20))
    def test_it_counts_what_the_loop_computes(self, prompt, new):
        model = Script(prompt, [3] * new)
        list(generate(model, [1] * prompt, new))
        self.check(prompt, new, sum(map(len, model.calls)), "add up the lengths of the calls")


class TestComplete:
    """Everything together: complete()."""

    def test_a_story_is_streamed_piece_by_piece(self):
        pieces: list[str] = []
        answer = complete(Script(1, [8, 5, 25, 0]), "a", show=pieces.append)
        cause = "the end token has no text, and each piece is shown as it comes"
        expect("the model says h e y eos", "shown", (pieces, answer.text), (["h", "e", "y"], "hey"), cause, LOOP)
        got = (answer.finish_reason, answer.tokens)
        expect("the model says h e y eos", "(finish_reason, tokens)", got, ("stop", [8, 5, 25, 0]), cause, LOOP)

    def test_a_stop_string_ends_the_loop_too(self):
        model = Script(1, [1, 2, 3, 4, 5])
        answer = complete(model, "a", stops=["bc"])
        got = (answer.text, answer.finish_reason, answer.stop, len(model.calls))
        cause = "after the token that completes the stop string the model is not asked again"
        expect("the model says a b c d e, stop string bc", "complete()", got, ("a", "stop", "bc", 3), cause, ENDS)

    def test_what_is_held_is_shown_at_the_end(self):
        answer = complete(Script(1, [1, 2, 3]), "a", max_tokens=2, stops=["bcd"])
        got = (answer.text, answer.finish_reason)
        cause = "b may begin bcd and is held; at max_tokens nothing completes it, so it belongs to the text"
        expect("the model says a b c, max_tokens 2", "complete()", got, ("ab", "length"), cause, ENDS)

    def test_prompt_and_answer_fit_the_model(self):
        answer = complete(Script(38, [1] * 99), "a" * 38)
        cause = "max_model_len is 40, the prompt has 38"
        expect("38 of 40 tokens are prompt", "new tokens", len(answer.tokens), 2, cause, ENDS)

    def test_the_same_seed_tells_the_same_story(self):
        class Even(Script):
            def logits(self, tokens):
                return np.zeros((len(tokens), 27), "float32")

        settings = {"max_tokens": 6, "sampling": Sampling(1.5)}
        texts = [complete(Even(1, []), "a", seed=seed, **settings).text for seed in (3, 3, 4, 5, 6)]
        cause = "one random number a token, all from the Random that it was given"
        expect("seed 3 twice", "the second text", texts[1], texts[0], cause, DRAW)
        expect("seeds 3 to 6", "different texts", len(set(texts)) > 1, True, "use `rng`, not a constant", DRAW)
