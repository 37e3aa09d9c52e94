"""FedDBE for Headwise: installed, `headwise run --method feddbe` finds it."""
