"""What a shower is: arrays and their units, files, preprocessing, storage."""
