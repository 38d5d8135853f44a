"""Who answers questions: the emulator, this CPU through several libraries, and recordings.

Every machine has ``name``, ``title``, ``can(question=None) -> Can`` (with no question: whether it works here at all),
``provenance() -> dict`` and ``answer(question) -> Answer``. Machines load what they need only when asked.
"""

from __future__ import annotations

from numsim.machines.question import Answer, Can, Question, ask

__all__ = ["Answer", "Can", "Question", "ask"]
