"""A second opinion that abstains where it has none, and prices that the data writes in several ways."""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number, same_number

PARSER = NumberParser()
PRICES = (("$1,250.00", 1250), ("$19.99", 19.99), ("45%", 45), ("-7", -7), ("3/4", 0.75), ("12", 12))
ROWS = [{"question": f"Which number was meant by {text}?", "answer": text} for text, _ in PRICES]


def correctness(completion, answer, parser):
    return float(same_number(parser.parse_answer(completion), answer))


def whole(completion, answer):
    """Whether a whole number was given for a whole number; nothing to say of others."""
    gold, given = read_number(answer), PARSER.value(completion)
    return None if gold.denominator != 1 else float(given is not None and given == gold)


class Prices(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Prices(
        parser=PARSER,
        rubric=Rubric([correctness, whole], [1.0, 0.1]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
