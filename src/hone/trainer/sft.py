"""The script that torchrun starts for `hone sft`. SFT itself is in `hone.loops.sft`.

torchrun --nproc-per-node 2 src/hone/trainer/sft.py @ examples/reverse_text/tiny_sft.toml
"""

if __name__ == "__main__":
    import sys

    from hone.cli import sft

    sys.exit(sft())
