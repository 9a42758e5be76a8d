"""A JSON object with the name and the age that a sentence tells; each field right is worth a half."""

import json

from hone.environments import Parser, Range, Rubric, SingleTurnEnv
from hone.environments.answers import said

PEOPLE = (("Anna", 31), ("Bert", 44), ("Carla", 27), ("Dario", 58), ("Elif", 19), ("Finn", 36))
ROWS = [
    {"question": f"{name} has turned {age} this year and likes tea.", "answer": json.dumps({"name": name, "age": age})}
    for name, age in PEOPLE
]


class JsonParser(Parser):
    expects = 'an object {"name": …, "age": …}'

    def parse(self, text):
        """The last object of the text with both fields, as it was written."""
        text, decoder, start = said(text), json.JSONDecoder(), -1
        while (start := text.rfind("{", 0, start if start >= 0 else len(text))) >= 0:
            try:
                value, end = decoder.raw_decode(text, start)
            except (ValueError, RecursionError):
                value, end = None, 0
            if isinstance(value, dict) and {"name", "age"} <= value.keys():
                return text[start:end]
            if start == 0:
                break
        return None


def _share(completion, answer, parser):
    given, gold = json.loads(parser.parse_answer(completion) or "{}"), json.loads(answer)
    name, age = str(given.get("name", "")).strip().casefold(), str(given.get("age", "")).strip()
    return 0.5 * (name == gold["name"].casefold()) + 0.5 * (age == str(gold["age"]))


def correctness(completion, answer, parser):
    return float(_share(completion, answer, parser) == 1)


def fields(completion, answer, parser):
    return _share(completion, answer, parser)


class People(SingleTurnEnv):
    def reference(self, example):
        return f"```json\n{example.answer}\n```"


def load_environment():
    ranges = {"correctness": Range((1.0, 1.0), (0.0, 0.0)), "fields": Range((1.0, 1.0), (0.0, 0.5))}
    return People(
        parser=JsonParser(),
        rubric=Rubric([correctness, fields], [0.5, 0.5], ranges=ranges),
        dataset=ROWS,
        system_prompt='Answer with a JSON object with the keys "name" and "age".',
    )
