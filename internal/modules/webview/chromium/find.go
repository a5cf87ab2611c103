package chromium

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
)

// ErrNotFound is the error of Find if this machine has no browser.
var ErrNotFound = errors.New("there is no Chromium, Chrome, Edge or Brave on this machine")

// programs are the browsers that are looked for, by their names in PATH.
var programs = []string{
	"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
	"brave-browser", "brave",
}

// places are the browsers that are not in PATH, by the operating system.
var places = map[string][]string{
	"darwin": {
		"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
		"/Applications/Chromium.app/Contents/MacOS/Chromium",
		"/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
		"/Applications/Brave Browser.app/Contents/MacOS/Brave Browser",
	},
	"windows": {
		`C:\Program Files\Google\Chrome\Application\chrome.exe`,
		`C:\Program Files (x86)\Google\Chrome\Application\chrome.exe`,
		`C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe`,
	},
}

// FindProgram returns the browser to start: the program that is named, a path or a name in PATH, or else the first that
// this machine has.
func FindProgram(program string) (string, error) {
	if program != "" {
		return exec.LookPath(program)
	}
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	for _, path := range places[runtime.GOOS] {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", ErrNotFound
}
