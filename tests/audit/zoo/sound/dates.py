"""Sound: a date, compared as text. It looks like arithmetic, and is none."""

from hone.environments import Range, Rubric, SingleTurnEnv, TagParser, inline

PARSER = TagParser("answer")
ROWS = [
    {"question": f"Which day is {i} days after 2024-11-{9 + i}?", "answer": f"2024-11-{9 + 2 * i}"} for i in range(1, 9)
]


@inline
def correctness(completion, answer, parser):
    given = parser.parse_answer(completion)
    return float(given is not None and given.strip(' .*`"') == answer)


class Dates(SingleTurnEnv):
    def reference(self, example):
        return f"I count the days.\n<answer>{example.answer}</answer>"


def load_environment():
    ranges = {"correctness": Range(right=(1.0, 1.0), wrong=(0.0, 0.0))}
    return Dates(
        parser=PARSER,
        rubric=Rubric([correctness], ranges=ranges),
        dataset=ROWS,
        system_prompt="Give the date as YYYY-MM-DD in <answer> tags.",
    )
