"""Commands for researchers: simulate, compare, leave out a site, pool data, pretrain, estimate, demonstrate."""
