"""Local services, load and faults. The product imports nothing from here."""
