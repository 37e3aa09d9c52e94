"""FedExP for Headwise: once installed, `headwise run --method fedexp` finds it."""
