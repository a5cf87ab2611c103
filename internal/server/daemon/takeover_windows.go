package daemon

import "errors"

// Replace fails, because Windows cannot replace the program of a process.
func Replace(string, string, []byte) error {
	return errors.New("the daemon is of another version than this program; restart the client")
}

// Resumed returns nil, because Replace never succeeds.
func Resumed(func(string) string) ([]byte, error) { return nil, nil }
