"""Commands for researchers and leads: simulate, compare, leave out a site, pool data, pretrain, estimate, watch."""
