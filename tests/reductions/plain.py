"""Plans whose steps are taken one by one: two methods agree to the bit only where their arithmetic is the same."""

from __future__ import annotations

from functools import partial

from headwise.testing import toy

toy_plan = partial(toy.toy_plan, kernels="plain")
