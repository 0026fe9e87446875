"""What a researcher runs: simulate, compare, leave out, pool, pretrain, estimate, demonstrate."""
