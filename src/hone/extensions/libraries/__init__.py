"""Tasks of other libraries, as environments: `reasoning-gym:leg_counting`, `verifiers:my-taskset`.

An adapter refuses a task that it cannot score faithfully, and says why. The libraries run in separate processes
(`hone.grading.pool`) and are never imported here. A hang or crash there costs one sample.
"""
