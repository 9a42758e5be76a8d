"""A group of two environments: each row goes to its own."""

import echo_words
import shop
import verifiers as vf


def load_environment():
    return vf.EnvGroup([echo_words.load_environment(own_eval=False), shop.load_environment()], ["echo", "shop"])
