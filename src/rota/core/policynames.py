"""The names of whole policies, alone, for those who must start quickly; core/presets.py says what each stands for."""

NAMES = (
    "fcfs-strict",
    "fcfs-skip",
    "priority",
    "sjf",
    "fair_share",
    "easy",
    "conservative",
    "srtf",
    "las",
    "auto",
)
