"""Where the gain of a finished cycle went: five stages, and what each of them lost."""
