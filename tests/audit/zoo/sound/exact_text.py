"""Copies a string in which every character counts, between tags."""

from hone.environments import Rubric, SingleTurnEnv, TagParser

PARSER = TagParser("copy")
TEXTS = ("xK9-qq", "A  b", "teh cat", "(1,2];", "No.7", "ÄÖ ü", "mIxEd", "a_b__c")
ROWS = [{"question": f"Copy this: {text}", "answer": text} for text in TEXTS]


def correctness(completion, answer):
    return float(PARSER.parse_answer(completion) == answer)


class Copies(SingleTurnEnv):
    answer_is_exact = True

    def reference(self, example):
        return PARSER.wrap(example.answer)


def load_environment():
    prompt = "Copy the text into <copy> tags, character by character."
    return Copies(parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
