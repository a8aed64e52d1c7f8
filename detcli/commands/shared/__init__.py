"""What commands share: option types, messages, progress, reports, opened sinks."""
