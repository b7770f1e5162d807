"""Tasks: the supported environments, and the functions to register more environments."""

from gelato.tasks import driving, four_rooms, locomotion, partial, pixels
from gelato.tasks.environments import check_environment, make_environment
from gelato.tasks.task import (
    AbstractSimulator,
    Task,
    find_task,
    list_tasks,
    register_task,
)

__all__ = [
    "AbstractSimulator",
    "Task",
    "check_environment",
    "driving",
    "find_task",
    "four_rooms",
    "list_tasks",
    "locomotion",
    "make_environment",
    "partial",
    "pixels",
    "register_task",
]
