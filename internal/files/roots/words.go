package roots

import "path/filepath"

// Expand replaces a leading ~ by the user's home directory.
func Expand(path string) string { return expand(path, home(Options{})) }

// Inside reports whether a folder is one of these or below one, after following links that exist. It is not a
// security check; opening the folder is.
func Inside(path string, folders []string) bool {
	return meets(path, folders, false)
}

// Meet reports whether a folder is one of these, below one, or above one.
func Meet(path string, folders []string) bool {
	return meets(path, folders, true)
}

func meets(path string, folders []string, above bool) bool {
	path = real(path)
	for _, f := range folders {
		f = real(Expand(f))
		if rel, err := filepath.Rel(f, path); err == nil && filepath.IsLocal(rel) {
			return true
		}
		if rel, err := filepath.Rel(path, f); above && err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}

func real(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}
