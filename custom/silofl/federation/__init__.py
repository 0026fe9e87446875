"""One round at a site and at the server, without a network: messages, state on disk, the ledger."""
