"""All longer measurements, one after the other: `make bench`. Each writes its page in docs/results/."""

from __future__ import annotations

import os

import league
import speed
import studies

if __name__ == "__main__":
    speed.main()
    league.main()
    if os.environ.get("HEADWISE_DATA"):
        studies.main(list(studies.STUDIES))
    else:
        print("The studies of the five methods need MNIST: set HEADWISE_DATA to the folder that holds mnist/.")
