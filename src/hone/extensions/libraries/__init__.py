"""Tasks of other libraries, as environments: `reasoning-gym:leg_counting`, `verifiers:my-taskset`.

An adapter refuses a task that it can't score faithfully, and says why. The libraries run in separate processes
(`hone.grading.pool`) and are never imported into hone's process. A library that hangs or crashes costs one sample.
"""
