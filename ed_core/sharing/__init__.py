"""What others are handed who have no laboratory of their own: findings as a static site."""
