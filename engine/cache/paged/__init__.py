"""The paged layout: a pool of pages, page tables, prefixes, the host tier."""
