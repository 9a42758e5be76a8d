"""Run hone on a GPU of Modal, with a budget; a run that is preempted goes on from its last checkpoint.

    modal run --detach examples/cloud/modal_app.py --command "rl @ rl.toml" --name mine --usd 5 --usd-per-hour PRICE
    modal volume get hone-outputs mine outputs/

Run it in a clone, after `make wheel`. `--files` are sent with the command: by default all .toml, .py and .jsonl of the
current folder. PRICE is what Modal asks per hour for the GPU and its container. The run writes into a volume.
"""

import shlex
import subprocess
from pathlib import Path

import modal

OUTPUTS = Path("/outputs")
volume = modal.Volume.from_name("hone-outputs", create_if_missing=True)
app = modal.App("hone")
image = modal.Image.debian_slim(python_version="3.12").apt_install("build-essential")  # a C compiler, for Triton
image = image.env({"HF_HOME": str(OUTPUTS / ".huggingface")})
if modal.is_local():
    wheel = next(Path("dist").glob("*.whl"), None) or exit("There is no wheel in dist: run make wheel first.")
    for file in (wheel, Path("constraints.txt")):
        image = image.add_local_file(file, f"/hone/{file.name}", copy=True)
    image = image.run_commands(f"pip install -c /hone/constraints.txt /hone/{wheel.name}")


def words(command: str, name: str, usd: float, usd_per_hour: float) -> list[str]:
    """Return the command with its output folder, its budget, and what lets it go on after a preemption."""
    budget = ["--budget.usd", str(usd), "--budget.usd-per-hour", str(usd_per_hour)]
    return [*shlex.split(command), "--output-dir", str(OUTPUTS / name), "--ckpt", "--resume", *budget]


@app.function(image=image, volumes={str(OUTPUTS): volume}, timeout=24 * 3600, retries=3)
def train(command: list[str], files: dict[str, bytes]) -> int:
    """Run a command of hone beside its files. Modal calls it again with the same arguments after a preemption."""
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    process = subprocess.Popen([*command, "--display", "plain", "--grace-seconds", "20"])
    try:
        return process.wait()
    finally:
        process.terminate()  # a preemption interrupts the wait: the run saves
        process.wait()
        volume.commit()


@app.local_entrypoint()
def main(
    command: str, name: str, usd: float, usd_per_hour: float, gpu: str = "H100", files: str = "*.toml *.py *.jsonl"
):
    sent = {str(file): file.read_bytes() for pattern in files.split() for file in Path().glob(pattern)}
    code = train.with_options(gpu=gpu).remote(words(command, name, usd, usd_per_hour), sent)
    print(f"exit code {code}; modal volume get hone-outputs {name} outputs/")
