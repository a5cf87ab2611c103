package chromium

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// ErrNotFound is the error of Find if this machine has no browser.
var ErrNotFound = errors.New("there is no Chromium, Chrome, Edge or Brave on this machine")

// programs are the browsers that are looked for, by their names in PATH. The first two are Chromium without the parts
// that only a window needs: they start in a third of the time.
var programs = []string{
	"chromium-headless-shell", "chrome-headless-shell",
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
// this machine has, without its launcher script.
func FindProgram(program string) (string, error) {
	if program != "" {
		return exec.LookPath(program)
	}
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			return behindLauncher(path), nil
		}
	}
	for _, path := range places[runtime.GOOS] {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", ErrNotFound
}

// behindLauncher returns the browser behind the launcher script of Debian and its like: prefix/lib/NAME/NAME or
// prefix/lib/chromium/NAME for prefix/bin/NAME. The script runs some twenty programs to find out flags which the host sets or which only a window needs;
// that can take longer than the browser's own start. Any other program is returned as it is.
func behindLauncher(program string) string {
	if !startsWith(program, "#!") {
		return program
	}
	name := filepath.Base(program)
	for _, folder := range []string{name, "chromium"} {
		behind := filepath.Join(filepath.Dir(filepath.Dir(program)), "lib", folder, name)
		if !startsWith(behind, "\x7fELF") {
			continue
		}
		if found, err := exec.LookPath(behind); err == nil { // it may be executed
			return found
		}
	}
	return program
}

func startsWith(path, magic string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, len(magic))
	_, err = io.ReadFull(f, b)
	return err == nil && string(b) == magic
}
