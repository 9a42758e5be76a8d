"""`hone plan` and `hone doctor`: resources of a run, and problems of this machine."""

from hone.extension import Command, Watch

REQUIRES = ("sandbox",)
COMMANDS = {
    "plan": Command("predict the steps, memory, time and cost of a run", "PlanConfig", "plan.run", __name__),
    "doctor": Command(
        "check this machine, and print fixes",
        "DoctorConfig",
        "doctor.run",
        __name__,
        bare="doctor.run_without_config",
    ),
}
OBSERVERS = {"forecast": Watch(35, "forecast.observer", __name__)}
