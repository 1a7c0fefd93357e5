"""TRACE: name the skills that an agent lacks, train an adapter for each, and route between them."""
