"""Tasks with rollouts of a program: `hone.rl(agent=…)`, `--agent`, `--agent-command`."""

REQUIRES = ("server",)
EXPORTS = {"environments.agent_task": "hone.extensions.agents.task"}
