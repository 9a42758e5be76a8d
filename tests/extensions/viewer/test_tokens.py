"""Each token's text and numbers stand where they belong, characters of several tokens included."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest
from made_runs import encode, row, tokenizer, write_run, write_tokens
from tokenizers import AddedToken, Tokenizer, decoders, models

from hone.errors import UserError
from hone.extensions.viewer import vocabulary
from hone.extensions.viewer.store import Store
from hone.extensions.viewer.tokens import read_tokens
from hone.extensions.viewer.vocabulary import Vocabulary
from hone.runs import Run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tmp_path_factory.mktemp("tiny") / "tokenizer.json"
    tokenizer().save(str(path))
    return vocabulary.load(path)


def sampled(tmp_path: Path, text: str, **changes):
    run = write_run(tmp_path / "run", {0: [row(text, **changes)]})
    return Run(run), Store(run).sample(0, 0)


@pytest.mark.parametrize("text", ["plain", "naïve 日本語 🙂", "<answer>é</answer>\n", "", "\x00 \u202e"])
def test_pieces_are_the_text_end_to_end(tiny: Vocabulary, text: str) -> None:
    ids = encode(text)
    pieces = tiny.pieces(ids)
    assert "".join(piece.text for piece in pieces) == text == tokenizer().decode(ids)
    assert sum(piece.count for piece in pieces) == len(ids)
    assert [piece.start for piece in pieces] == [sum(p.count for p in pieces[:i]) for i in range(len(pieces))]


def test_pieces_are_characters_special_tokens_or_bytes_that_are_no_text(tiny: Vocabulary) -> None:
    assert [(p.text, p.start, p.count) for p in tiny.pieces(encode("a🙂b"))] == [("a", 0, 1), ("🙂", 1, 4), ("b", 5, 1)]
    special, plain = tiny.pieces([2, *encode("<answer>")])
    assert (special.text, special.special, plain.special) == ("<|im_end|>", True, False)
    ids = encode("🙂")
    assert [(p.text, p.count) for p in tiny.pieces(ids[:3])] == [("�", 3)]
    assert "".join(p.text for p in tiny.pieces([*ids[:2], *encode("ok")])) == "�ok"
    assert [p.text for p in tiny.pieces([99999, *encode("x")])] == ["<id 99999>", "x"]


def test_tokens_of_other_families(tmp_path: Path) -> None:
    vocab = {"▁Hello": 0, "▁w": 1, "orld": 2, "<0xF0>": 3, "<0x9F>": 4, "<0x99>": 5, "<0x82>": 6, "<s>": 7}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<s>"))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken("<s>", special=True)])
    made.save(str(tmp_path / "a.json"))
    known = vocabulary.load(tmp_path / "a.json")
    assert [p.text for p in known.pieces([7, 0, 1, 2, 3, 4, 5, 6])] == ["<s>", " Hello", " w", "orld", "🙂"]
    made = Tokenizer(models.WordPiece(vocab={"play": 0, "##ing": 1}, unk_token="play"))
    made.decoder = decoders.WordPiece()
    made.save(str(tmp_path / "b.json"))
    assert [p.text for p in vocabulary.load(tmp_path / "b.json").pieces([0, 1])] == ["play", "ing"]


def test_a_run_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: [row("a")]}, with_tokenizer=False)
    known, why = vocabulary.find(Run(run))
    assert known is None and "there is no tokenizer" in why
    (run / "checkpoints" / "step_3").mkdir(parents=True)
    (run / "checkpoints" / "step_3" / "tokenizer.json").write_text("{")
    assert "cannot be read" in vocabulary.find(Run(run))[1]


def test_a_token_has_the_logprob_that_it_was_sampled_with(tmp_path: Path, tiny: Vocabulary) -> None:
    run, one = sampled(tmp_path, "a🙂b")
    tokens = read_tokens(run, one, tiny)
    assert [piece.text for piece in tokens.pieces] == ["a", "🙂", "b", "<|im_end|>"]
    assert tokens.values["logprob"] == pytest.approx([0.0, -0.05 * (1 + 2 + 3 + 4), -0.25, -0.3]), (
        "a sum over its tokens"
    )
    assert tokens.values["advantage"] == pytest.approx([-0.5] * 4)
    assert np.isnan(tokens.values["entropy"]).all() and "trainer.record_tokens" in tokens.missing["gap"]
    assert tokens.turns() == [range(4)]


def test_a_token_that_a_teacher_scored_has_its_own_advantage(tmp_path: Path, tiny: Vocabulary) -> None:
    run, one = sampled(tmp_path, "ab", teacher_logprobs=[0.0] * len(encode("user\n")) + [-1.0, -0.05, -0.1])
    with (run.path / "config.toml").open("a") as file:
        file.write("[teacher]\ncoef = 2.0\nreward_coef = 0.5\n")
    found = read_tokens(run, one, tiny).values["advantage"]
    assert found == pytest.approx([-0.25 - 2 * 1.0, -0.25, -0.25], abs=1e-6)


def test_a_call_with_a_reward_of_its_own_has_its_own_advantage(tmp_path: Path, tiny: Vocabulary) -> None:
    mask = [False] * len(encode("user\n")) + [True, False, True]
    run, one = sampled(tmp_path, "ab", sampled_mask=mask, call_advantages=[0.25, -1.0], call_rewards=[1.5, 0.25])
    first, between, second = read_tokens(run, one, tiny).values["advantage"]
    assert (first, second) == (0.25, -1.0) and np.isnan(between)
    with pytest.raises(UserError, match="one advantage per call"):
        read_tokens(run, one | {"call_advantages": [0.25]}, tiny)


def test_entropy_and_gap_come_from_the_train_step(tmp_path: Path, tiny: Vocabulary) -> None:
    run, one = sampled(tmp_path, "ab")
    write_tokens(run.path, 0, [("0-0-0", [0.5, 1.5, 0.25], [0.25, -0.05, -0.1])])
    tokens = read_tokens(run, one, tiny)
    assert tokens.values["entropy"].tolist() == [0.5, 1.5, 0.25] and not tokens.missing
    assert tokens.values["gap"] == pytest.approx([0.25, 0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("tokens", "state", "why"),
    [
        (("0-0-0", None, None), "filtered", "the completion was not trained on (filtered)"),
        (("0-0-0", None, None), "trained", "was not trained on (it was cut at its length limit, and"),
        (("0-0-0", [1.0], [0.0]), "trained", "tokens/ does not have one value"),
        (("5-5-5", [1.0] * 3, [0.0] * 3), "trained", "another completion"),
    ],
)
def test_why_entropy_is_missing_is_said(tmp_path: Path, tiny: Vocabulary, tokens, state, why) -> None:
    run, one = sampled(tmp_path, "ab", state=state)
    write_tokens(run.path, 0, [tokens])
    found = read_tokens(run, one, tiny)
    assert why in found.missing["entropy"] and np.isnan(found.values["entropy"]).all()
    assert ("advantage" in found.missing) == (state != "trained")


def test_damaged_tokens_cost_a_sentence(tmp_path: Path, tiny: Vocabulary) -> None:
    run, one = sampled(tmp_path, "ab")
    (run.path / "tokens").mkdir()
    (run.path / "tokens" / "step_000000.parquet").write_bytes(b"PAR1 nothing")
    found = read_tokens(run, one, tiny)
    assert "cannot be read" in found.missing["gap"] and not np.isnan(found.values["logprob"]).any()
    with pytest.raises(UserError, match="one logprob per token"):
        read_tokens(run, one | {"logprobs": [0.0]}, tiny)


def spans(markup: str) -> list[tuple[str, str, str]]:
    """The class, the title and the text of each token, of which the markup consists."""
    one = r'<span(?: class="([^"]*)")?(?: title="([^"]*)")?>([^<]*)</span>'
    assert re.fullmatch(f"({one})*", markup)
    return [(css, title, html.unescape(text)) for css, title, text in re.findall(one, markup)]


def test_each_token_has_its_colour_and_what_is_known_of_it(tmp_path: Path, tiny: Vocabulary) -> None:
    run, one = sampled(tmp_path, "a🙂<b", advantage=-0.5)
    write_tokens(run.path, 0, [("0-0-0", [0.0, *[0.4] * 4, 2.0, 0.5, 1.0], [0.0] * 8)])
    tokens = read_tokens(run, one, tiny)
    every = range(len(tokens.pieces))
    first, smile, less, *_, end = spans(tokens.painted(every, "logprob"))
    assert (first[0], smile[0], less[0], end[0]) == ("", "l2", "l1", "l1 sp")
    assert (smile[2], less[2], end[2]) == ("🙂", "<", "<|im_end|>")
    ids = " + ".join(map(str, encode("🙂")))
    assert smile[1] == (
        f"id {ids}, position {tokens.first + 1}\nprobability 0.607, logprob -0.5\n"
        "entropy 0.4 nats, gap 0.5 nats, advantage -0.5"
    )
    assert [css for css, _, _ in spans(tokens.painted(every, "gap"))[:3]] == ["", "l5", "l4"]
    assert {css for css, _, _ in spans(tokens.painted(every, "advantage"))} == {"m3", "m3 sp"}
    assert {css for css, _, _ in spans(tokens.painted(every, "none"))} == {"", "sp"}
