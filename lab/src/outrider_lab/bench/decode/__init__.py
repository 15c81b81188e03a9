"""`outrider lab bench decode`: engines that translate the same sentences, in turn."""
