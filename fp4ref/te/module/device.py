"""Where parameters are made when nobody says so."""

from __future__ import annotations

import torch


def default_device(device: torch.device | str | None) -> torch.device:
    """Return the given device, else the first GPU, else the CPU."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
