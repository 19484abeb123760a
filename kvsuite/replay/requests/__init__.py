"""Replays on engines that schedule and sample by themselves, judged on what they let us see."""
