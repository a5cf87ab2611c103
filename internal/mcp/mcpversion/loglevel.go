package mcpversion

import "log/slog"

var levels = [...]struct {
	name  string
	level slog.Level
}{
	{"debug", slog.LevelDebug}, {"info", slog.LevelInfo}, {"notice", slog.LevelInfo + 2},
	{"warning", slog.LevelWarn}, {"error", slog.LevelError}, {"critical", slog.LevelError + 4},
	{"alert", slog.LevelError + 8}, {"emergency", slog.LevelError + 12},
}

// ParseLevel returns the level of log messages that the protocol calls name.
func ParseLevel(name string) (slog.Level, bool) {
	for _, l := range levels {
		if l.name == name {
			return l.level, true
		}
	}
	return 0, false
}

// LevelName returns the highest named level that is not above l.
func LevelName(l slog.Level) string {
	name := levels[0].name
	for _, x := range levels {
		if x.level <= l {
			name = x.name
		}
	}
	return name
}
