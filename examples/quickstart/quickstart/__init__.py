"""A Flower App that trains one image classifier over clients whose data disagree."""
