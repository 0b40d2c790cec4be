"""TinyLM: the NumPy model is the torch model, tokens do not depend on company, and its stories hold together."""

from __future__ import annotations

import json
import os
import random
import sys

import pytest
from place import ROOT, python, run

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy comes: threads only cost on products this small
np = pytest.importorskip("numpy")
sys.path.insert(0, str(ROOT / "code"))

import measure_tinylm as measure  # noqa: E402
import stories  # noqa: E402
from kit import tinylm  # noqa: E402
from kit.tinylm import BadText, BadTokens, BadWeights, CacheOverrun, TinyLM, Tokenizer  # noqa: E402

REFERENCE = ROOT / "checks/tinylm_logits.safetensors"
STORIES = [stories.sample(random.Random(f"check {i}")).text for i in range(8)]


@pytest.fixture(scope="module")
def model() -> TinyLM:
    return TinyLM.load()


@pytest.fixture(scope="module")
def told(model):
    return measure.tell(model, [""] * 100, 0.8, seed=1)


# -- the same model as in torch ---------------------------------------------------------------------------------------------


def test_logits_are_those_that_torch_computed(model):
    tensors, metadata = tinylm.read_safetensors(REFERENCE)
    for name, tokens in json.loads(metadata["tokens"]).items():
        rows = json.loads(metadata["rows"])[name]
        assert np.abs(model.logits(tokens)[rows] - tensors[name]).max() < 1e-4, name


def test_logits_are_those_of_torch_today(model):
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    from train_tinylm import exported

    tokens = model.encode(" ".join(STORIES[:3]))
    with torch.no_grad():
        wanted = exported()(torch.tensor([tokens]))[0].numpy()
    assert np.abs(model.logits(tokens) - wanted).max() < 1e-4


def test_it_has_one_to_two_million_parameters_in_at_most_four_megabytes(model):
    assert 1_000_000 <= model.num_parameters <= 2_000_000
    assert tinylm.WEIGHTS.stat().st_size <= 4_000_000


# -- company ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 64])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(model, chunk):
    tokens = model.encode(STORIES[0])
    cache = model.new_cache()
    parts = [model.step([(cache, tokens[i : i + chunk])], every=True) for i in range(0, len(tokens), chunk)]
    assert np.abs(np.concatenate(parts) - model.logits(tokens)).max() < 1e-4


def test_prefill_chunks_and_decodes_in_one_step_are_what_they_are_alone(model):
    """Eight requests that move at different paces, some a token a step and some a chunk, share every step."""
    ids = [model.encode(text) for text in STORIES]
    caches = [model.new_cache(len(tokens)) for tokens in ids]
    rng = random.Random(0)
    got = [[] for _ in ids]
    while any(cache.length < cache.capacity for cache in caches):
        batch = []
        for i in rng.sample(range(len(ids)), rng.randint(1, len(ids))):
            new = ids[i][caches[i].length :][: rng.choice([1, 1, 5, 30])]
            if new:
                batch.append((i, new))
        if not batch:
            continue
        logits = model.step([(caches[i], new) for i, new in batch], every=True)
        for i, new in batch:
            got[i].append(logits[: len(new)])
            logits = logits[len(new) :]
    for tokens, parts in zip(ids, got):
        assert np.abs(np.concatenate(parts) - model.logits(tokens)).max() < 1e-4


def test_only_the_last_token_of_each_request_is_returned_unless_every_one_is_asked_for(model):
    batch = [(model.new_cache(), model.encode(text)[:n]) for text, n in zip(STORIES, (1, 9, 4))]
    last = model.step(batch)
    for row, (_, tokens) in zip(last, batch):
        assert np.abs(row - model.logits(tokens)[-1]).max() < 1e-4
    assert model.forward([1], [0], lambda layer, q, k, v: q, rows=[]).shape == (0, model.config.vocab_size)


def test_greedy_stories_do_not_depend_on_who_shares_the_steps(model):
    prompts = [text[: text.index(".") + 1] for text in STORIES]
    together = measure.tell(model, prompts, 0)
    assert [story.text for story in together] == [measure.tell(model, [prompt], 0)[0].text for prompt in prompts]


def test_a_rewound_cache_is_as_if_the_tokens_had_never_been(model):
    tokens = model.encode(STORIES[0])
    cache = model.new_cache()
    model.step([(cache, tokens[:20])])
    model.step([(cache, model.encode(STORIES[1])[:9])])
    cache.rewind(20)
    assert np.abs(model.step([(cache, tokens[20:30])])[0] - model.logits(tokens[:30])[-1]).max() < 1e-4


def test_in_float64_company_is_invisible(model):
    exact = TinyLM.load(dtype=np.float64)
    ids = [exact.encode(text) for text in STORIES]
    logits = exact.step([(exact.new_cache(), tokens) for tokens in ids])
    for row, tokens in zip(logits, ids):
        assert np.abs(row - exact.logits(tokens)[-1]).max() < 1e-11


# -- the stories ------------------------------------------------------------------------------------------------------------


def test_every_story_of_the_grammar_has_exactly_one_derivation_of_its_probability():
    for text in STORIES:
        assert len(stories.derivations(text)) == 1
        assert stories.ends(text) and stories.keeps_its_hero(text)


def test_a_story_with_a_wrong_word_is_not_of_the_grammar():
    for text in STORIES:
        name = next(name for name in stories.NAMES if f"named {name}" in text)
        other = next(girl_or_boy for girl_or_boy in stories.NAMES if girl_or_boy != name)
        head, _, tail = text.rpartition(name)
        assert not stories.derivations(head + other + tail) and not stories.keeps_its_hero(head + other + tail)
        assert not stories.derivations(text[:-1]) and not stories.ends(text[:-1])


def test_validation_loss_is_within_a_tenth_of_a_nat_of_the_entropy(model):
    found = measure.validate(model, 60)
    assert found.entropy - 0.01 < found.loss < found.entropy + 0.1


def test_stories_keep_their_hero(told):
    assert measure.keeps_hero(told) >= 0.95


def test_stories_end_properly(told):
    assert measure.ends_properly(told) >= 0.95


def test_what_is_found_early_is_what_helps_later(told):
    assert measure.in_grammar(told) >= 0.95


def test_it_loads_and_decodes_fast_enough_for_a_lesson_on_one_core():
    """In CPU time, and with much to spare on a slow machine."""
    program = """
import json, sys, time
sys.path[:0] = ["code", "tools"]
import measure_tinylm as measure
start = time.process_time()
model = measure.TinyLM.load()
seconds = time.process_time() - start
print(json.dumps([seconds, measure.decode_speed(model, 1), measure.decode_speed(model, 16)]))
"""
    done = run(sys.executable, "-c", program, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    seconds, alone, sixteen = json.loads(done.stdout)
    assert seconds < 0.3 and alone >= 400 and sixteen >= 2000


# -- tokenizer --------------------------------------------------------------------------------------------------------------


def test_decoding_gives_the_text_back(model):
    for text in [*STORIES, "Zebras vex Quinn", " two  spaces ", ""]:
        known = "".join(letter for letter in text if letter in model.tokenizer.tokens)
        ids = model.encode(known)
        assert ids[0] == model.bos_id and model.decode(ids) == known
        assert "".join(map(model.tokenizer.text_of, ids)) == known


def test_it_cuts_words_as_the_library_that_trained_it():
    library = pytest.importorskip("tokenizers")
    ours = Tokenizer.load()
    data = json.loads(tinylm.TOKENIZER.read_text("utf-8"))
    vocab = {token: i for i, token in enumerate(data["tokens"])}
    bpe = library.Tokenizer(library.models.BPE(vocab, [tuple(pair) for pair in data["merges"]]))
    bpe.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(Tokenizer.WORD.pattern), "isolated")
    for text in STORIES:
        assert ours.encode(text, bos=False) == bpe.encode(text).ids


# -- bad input --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Once upon a tïme", "A\nB", "<eos>"])
def test_an_unknown_character_is_named(model, text):
    with pytest.raises(BadText, match="no token for"):
        model.encode(text)


@pytest.mark.parametrize(
    ("tokens", "positions", "words"),
    [
        ([], [], "at least one"),
        ([768], [0], "token id 768"),
        ([-1], [0], "token id -1"),
        ([5], [512], "position 512"),
        ([5], [-1], "position -1"),
        ([5, 6], [0], "one for each of the 2"),
        ([5.5], [0], "whole numbers"),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(model, tokens, positions, words):
    with pytest.raises(BadTokens, match=words):
        model.forward(tokens, positions, lambda layer, q, k, v: q)


def test_decoding_an_unknown_id_is_refused(model):
    for token in (-1, 768):
        with pytest.raises(BadTokens, match=str(token)):
            model.decode([token])


def test_a_cache_overrun_is_refused_and_nothing_is_stored(model):
    cache, other = model.new_cache(4), model.new_cache(4)
    with pytest.raises(CacheOverrun, match="5 more tokens do not fit: the KV cache holds 0 of at most 4"):
        model.step([(other, [1]), (cache, [1, 2, 3, 4, 5])])
    assert cache.length == other.length == 0
    for length in (-1, 1):
        with pytest.raises(CacheOverrun, match="can't rewind"):
            cache.rewind(length)
    with pytest.raises(CacheOverrun):
        model.new_cache(0)


def test_a_batch_that_makes_no_sense_is_refused(model):
    cache = model.new_cache()
    with pytest.raises(BadTokens, match="no token to compute"):
        model.step([(cache, [])])
    with pytest.raises(BadTokens, match="share a KV cache"):
        model.step([(cache, [1]), (cache, [2])])
    with pytest.raises(BadTokens, match="at least one"):
        model.step([])
    with pytest.raises(BadTokens, match="token id 768"):
        model.step([(cache, [1, 768])])
    assert cache.length == 0


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[: len(data) // 2], "cut short"),
        (lambda data: data[:100], "not a safetensors file"),
        (lambda data: b"", "not a safetensors file"),
        (lambda data: b"{}" * 50, "not a safetensors file"),
        (lambda data: data.replace(b"[768,128]", b"[384,256]"), "has shape"),
        (lambda data: data.replace(b"model.norm.weight", b"model.nurm.weight"), "lack model.norm.weight"),
        (lambda data: data.replace(b'\\"hidden_size\\"', b'\\"hodden_size\\"'), "no model configuration"),
    ],
)
def test_a_damaged_weights_file_is_refused(tmp_path, damage, words):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(damage(tinylm.WEIGHTS.read_bytes()))
    with pytest.raises(BadWeights, match=words):
        TinyLM.load(path)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    data = json.loads(tinylm.TOKENIZER.read_text("utf-8"))
    for text in ("{", "[]", json.dumps({**data, "tokens": data["tokens"][:-1]}), '{"tokens": 3}'):
        path.write_text(text, "utf-8")
        with pytest.raises(BadWeights, match="tokeni"):
            TinyLM.load(tokenizer=path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(BadWeights, match=r"gone\.safetensors can't be read"):
        TinyLM.load(tmp_path / "gone.safetensors")
    with pytest.raises(BadWeights, match=r"gone\.json can't be read"):
        TinyLM.load(tokenizer=tmp_path / "gone.json")


def test_without_numpy_one_sentence_says_what_to_install():
    program = """
import sys
sys.path.insert(0, "code")
from kit.tinylm import CourseError, Tokenizer, TinyLM
print(Tokenizer.load().encode("Milo")[0])
try:
    TinyLM.load()
except CourseError as error:
    print(error)
"""
    done = python("-c", program)
    assert done.stdout == "1\nTinyLM needs NumPy: pip install numpy\n", done.stderr
