"""Any prime in a range is right; the grader tests it with witnesses that it draws from the generator it is given."""

from hone.environments import NumberParser, Rubric, SingleTurnEnv

PARSER = NumberParser()
ROWS = [
    {"question": f"Name a prime number from {n} to {n + 30}.", "answer": str(prime), "info": {"from": n}}
    for n, prime in ((100, 101), (200, 211), (300, 307), (400, 401), (500, 503), (600, 601))
]


def probably_prime(n, rng):
    if n < 4 or n % 2 == 0:
        return n in (2, 3)
    return all(pow(int(a), n - 1, n) == 1 for a in rng.integers(2, n - 1, size=12))


def correctness(completion, info, rng):
    given = PARSER.value(completion)
    if given is None or given.denominator != 1 or not info["from"] <= given <= info["from"] + 30:
        return 0.0
    return float(probably_prime(int(given), rng))


class Primes(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Give the number in <answer> tags."
    return Primes(parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
