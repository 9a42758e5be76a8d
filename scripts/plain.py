"""Count constructions that slow a reader down, in docstrings, comments, messages and pages.

    python scripts/plain.py [PATH ...]           # rates by folder
    python scripts/plain.py --show src/hone/runs # each place, with the line

It is a signal, not a judge: a sentence without any of these can still be a riddle. Read it aloud as well.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from pathlib import Path

PATTERNS = {  # name: (pattern, better)
    "what-clause": (
        r"\b(?:of|by|with|from|for|and|than|,) what (?:it|they|a|an|the|is|was|are|were|of)\b",
        "name the thing",
    ),
    "opening": (
        r"(?:^|(?<=[.!?] ))(?:What|How|Whether|Where|Who|Those|That|Of)\b(?![^.?!]*\?)(?! (?:is|are) (?:why|how)\b)",
        "begin with the subject or a verb",
    ),
    "those-of": (r"\b(?:those|that|the one) (?:of|that|which|in|for|behind|with)\b", "repeat the noun"),
    "of-which": (r"\b(?:of|in|for|from|by|with|to|behind|after) (?:which|whose|whom)\b", "two sentences"),
    "whose": (r"\bwhose\b", "two sentences, or 'with'"),
    "mend": (r"\bmend(?:s|ed|ing)?\b", "fix, repair"),
    "told": (r"\b(?:is|are|was|were|be) (?:told|said|named|called) (?!by\b)", "say, report, name it actively"),
    "to-be-had": (r"\bto be had\b|\bis to\b|\bare to\b", "can, must"),
    "own": (
        r"\b(?:of (?:its|their|his|your) own|an? own|the own|own (?:engine|server|model|process|loss))\b",
        "separate, built-in, custom",
    ),
    "so-many": (r"\bso (?:many|much)\b(?! that)", "give the number or name"),
    "begun": (r"\bbegun\b|\bcame to (?:the|a)\b|\bgoes? by\b|\bgone (?:by|with)\b", "started, reached, uses"),
    "none-is": (r"\b(?:none|nothing) (?:is|was|of it|else) ", "say what happens instead"),
    "place-of": (r"\bin (?:the )?place of\b", "instead of"),
    "kept": (r"\bkept\b", "stored, retained, candidate: say which"),
    "by-itself": (r"\bby (?:itself|themselves)\b", "alone, automatically: say which"),
}
COMPILED = {
    name: re.compile(pattern, re.IGNORECASE if name != "opening" else 0) for name, (pattern, _) in PATTERNS.items()
}


def python_texts(source: str) -> list[tuple[int, str]]:
    """(line, text) of docstrings, other strings with a space in them, and comments."""
    texts: list[tuple[int, str]] = []
    tree = ast.parse(source)
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):  # an f-string is one text
            inside.update(id(part) for part in ast.walk(node))
            text = "".join(p.value if isinstance(p, ast.Constant) else "X" for p in node.values)
            if text.count(" ") > 2:
                texts.append((node.lineno, text))
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in inside else None
        if isinstance(text, str) and text.count(" ") > 2:
            texts.append((node.lineno, text))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            texts.append((token.start[0], token.string.lstrip("# ")))
    return texts


def page_texts(source: str) -> list[tuple[int, str]]:
    """(line, text) of a Markdown page's prose: no code blocks, tables or inline code."""
    texts, code = [], False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.startswith(("|", "#", "    ")):
            texts.append((number, re.sub(r"`[^`]*`", "X", line)))
    return texts


def examine(path: Path) -> tuple[int, list[tuple[int, str, str]]]:
    """Words of a file's prose, and its places: (line, name of the pattern, sentence around it)."""
    source = path.read_text(encoding="utf-8", errors="replace")
    texts = page_texts(source) if path.suffix == ".md" else python_texts(source)
    words, places = 0, []
    for line, text in texts:
        words += len(text.split())
        flat = " ".join(text.split())
        for name, pattern in COMPILED.items():
            for match in pattern.finditer(flat):
                places.append((line, name, flat[max(0, match.start() - 40) : match.end() + 50]))
    return words, places


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("src"), Path("docs"), Path("README.md")])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--max", type=float, help="highest rate of all")
    parser.add_argument("--max-folder", type=float, help="highest rate of a folder with over 300 words")
    args = parser.parse_args()
    files = [f for p in args.paths for f in ([p] if p.is_file() else sorted([*p.rglob("*.py"), *p.rglob("*.md")]))]
    folders: dict[str, list[int]] = {}
    for file in files:
        words, places = examine(file)
        folder = folders.setdefault(str(file.parent), [0, 0])
        folder[0] += words
        folder[1] += len(places)
        if args.show:
            for line, name, around in sorted(places):
                print(f"{file}:{line}: {name} ({PATTERNS[name][1]}): …{around}…")
    words, count = (sum(f[i] for f in folders.values()) for i in (0, 1))
    rate = 10_000 * count / max(1, words)
    if not args.show:
        for folder, (w, c) in sorted(folders.items(), key=lambda item: -item[1][1] / max(1, item[1][0])):
            if w > 300:
                print(f"{10_000 * c / w:6.0f}  {c:5} of {w:6} words  {folder}")
    print(f"{rate:.0f} per 10,000 words: {count} in {words} words of {len(files)} files")
    high = [
        name for name, (w, c) in folders.items() if w > 300 and args.max_folder and 10_000 * c / w > args.max_folder
    ]
    if high:
        print("folders above:", ", ".join(high))
    return int((args.max is not None and rate > args.max) or bool(high))


if __name__ == "__main__":
    sys.exit(main())
