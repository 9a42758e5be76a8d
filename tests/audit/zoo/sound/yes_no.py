"""Yes or no, as many of each; in tags, in any case."""

from hone.environments import AnswerParser, Rubric, SingleTurnEnv


def read(text):
    word = text.strip(" \t\r\n.!*_`\"'“”‘’").lower()
    return word if word in ("yes", "no") else None


PARSER = AnswerParser(read, ("tag",), "yes or no in <answer> tags")
ROWS = [
    {"question": f"Is {a} larger than {b}?", "answer": "yes" if a > b else "no"}
    for a, b in ((12, 3), (7, 44), (25, 6), (9, 17), (81, 18), (33, 35), (64, 46), (20, 21))
]


def correctness(completion, answer):
    return float(PARSER.value(completion) == answer)


class Larger(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Answer with yes or no in <answer> tags."
    return Larger(parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
