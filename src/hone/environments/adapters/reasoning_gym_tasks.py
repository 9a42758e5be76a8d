"""Which tasks of reasoning-gym are scored faithfully, and why the others are not.

Measured by `benchmarks/reasoning_gym_tasks.py` with reasoning-gym 0.1.25; tests hold both lists to what is installed.
"""

from __future__ import annotations

EVALUATES = (
    "its score evaluates the answer as Python code (eval, or sympy's parse_expr), and hone evaluates nothing that a "
    "model wrote"
)
UNKNOWN = "it gives no answer that its own score accepts, so nothing shows that the score is right"
OWN = "; hone's own task `countdown` reads expressions by a grammar"

REFUSED = {
    "binary_matrix": EVALUATES,
    "boxnet": UNKNOWN,
    "complex_arithmetic": "its score takes nan for right",
    "composite": "it mixes other tasks; take them one by one",
    "countdown": EVALUATES + OWN,
    "game_of_life_halting": "its score takes any text for right",
    "graph_color": UNKNOWN,
    "intermediate_integration": EVALUATES,
    "list_functions": "it draws from Python's global random state, so that no seed makes the same rows again",
    "n_queens": EVALUATES,
    "polynomial_multiplication": EVALUATES,
    "prime_factorization": "its score fails on any answer that is not a product of numbers, instead of giving it 0",
    "propositional_logic": UNKNOWN,
    "puzzle24": EVALUATES + OWN,
    "rubiks_cube": UNKNOWN,
    "rush_hour": UNKNOWN,
    "simple_integration": EVALUATES,
    "spiral_matrix": EVALUATES,
    "string_insertion": EVALUATES,
}
"""The tasks that are refused, and the reasons in words."""

_SCORED = """
ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
bitwise_arithmetic caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio coin_flip
color_cube_rotation count_bits count_primes course_schedule cryptarithm decimal_arithmetic decimal_chain_sum
dice emoji_mystery family_relationships figlet_font fraction_simplification futoshiki game_of_life gcd
group_anagrams gsm_symbolic isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm
leg_counting letter_counting letter_jumble mahjong_puzzle manipulate_matrix maze mini_sudoku
modulo_grid needle_haystack number_filtering number_format number_sequence number_sorting
palindrome_generation palindrome_partitioning path_star polynomial_equations pool_matrix power_function
products quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges self_reference
sentence_reordering shortest_path simple_equations simple_geometry sokoban spell_backward
string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi
tsumego word_ladder word_sequence_reversal word_sorting zebra_puzzles
"""
SCORED = frozenset(_SCORED.split())
"""The tasks that are taken."""
