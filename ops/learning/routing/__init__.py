"""What a panel of members keeps of perfect routing, with a trained router and without training."""
