"""What the user is told: findings, counts by source line, traced values, the buffers they name."""
