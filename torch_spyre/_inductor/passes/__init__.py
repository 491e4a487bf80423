"""Passes over loop IR, and the last one over the plan. One file, one public function each."""
