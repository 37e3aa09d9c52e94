"""Data: a source yields arrays, a partition yields indices, `FederatedData` yields clients."""
