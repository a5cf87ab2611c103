package config

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
)

// folderRule locates one of the Folders: the variable that sets it for this program alone, the variable of the
// platform's convention, and the default location without either.
type folderRule struct {
	ours   string
	theirs string // a folder that several programs share
	under  string // below the user's home folder, shared as well
	own    string // this program's own part below theirs or under
}

// platform returns the locations on a system, in the order of Folders: config, data, cache, state, runtime.
func platform(goos string) [5]folderRule {
	names := [5]string{"CONFIG", "DATA", "CACHE", "STATE", "RUNTIME"}
	var p [5]folderRule
	switch goos {
	case "darwin", "ios":
		const lib = "Library/Application Support"
		p = [5]folderRule{
			{under: lib, own: "gatehouse"},
			{under: lib, own: "gatehouse/data"},
			{under: "Library/Caches", own: "gatehouse"},
			{under: lib, own: "gatehouse/state"},
			{},
		}
	case "windows":
		p = [5]folderRule{
			{theirs: "AppData", under: "AppData/Roaming", own: "gatehouse"},
			{theirs: "LocalAppData", under: "AppData/Local", own: "gatehouse/data"},
			{theirs: "LocalAppData", under: "AppData/Local", own: "gatehouse/cache"},
			{theirs: "LocalAppData", under: "AppData/Local", own: "gatehouse/state"},
			{theirs: "LocalAppData", under: "AppData/Local", own: "gatehouse/run"},
		}
	default:
		p = [5]folderRule{
			{theirs: "XDG_CONFIG_HOME", under: ".config", own: "gatehouse"},
			{theirs: "XDG_DATA_HOME", under: ".local/share", own: "gatehouse"},
			{theirs: "XDG_CACHE_HOME", under: ".cache", own: "gatehouse"},
			{theirs: "XDG_STATE_HOME", under: ".local/state", own: "gatehouse"},
			{theirs: "XDG_RUNTIME_DIR", own: "gatehouse"},
		}
	}
	for i := range p {
		p[i].ours = "GATEHOUSE_" + names[i] + "_DIR"
	}
	return p
}

// platformFolders fills Folders for this system. set reports errors in this program's own variables; those of the
// convention are ignored if they are not absolute, as the convention requires.
func platformFolders(getenv func(string) string, set func(string, func(string) error)) (f Folders) {
	home := homeFolder(getenv)
	into := [5]*string{&f.Config, &f.Data, &f.Cache, &f.State, &f.Runtime}
	for i, p := range platform(runtime.GOOS) {
		*into[i] = p.resolve(getenv, home)
		set(p.ours, func(v string) error {
			if !filepath.IsAbs(v) {
				return errors.New(
					strconv.Quote(v) + " is not absolute; expected an absolute path, such as /var/lib/gatehouse",
				)
			}
			*into[i] = filepath.Clean(v)
			return nil
		})
	}
	return f
}

func (f folderRule) resolve(getenv func(string) string, home string) string {
	return f.resolveIn(getenv, home, os.TempDir())
}

// resolveIn is resolve with the folder for temporary files.
func (f folderRule) resolveIn(getenv func(string) string, home, temporary string) string {
	if f.theirs != "" {
		if v := getenv(f.theirs); filepath.IsAbs(v) {
			return filepath.Join(v, filepath.FromSlash(f.own))
		}
	}
	if f.under != "" {
		return filepath.Join(home, filepath.FromSlash(f.under), filepath.FromSlash(f.own))
	}
	return temporaryFolder(temporary)
}

// temporaryFolder returns this user's folder in a folder for temporary files.
func temporaryFolder(temporary string) string {
	return filepath.Join(temporary, "gatehouse-"+strconv.Itoa(os.Getuid()))
}

// homeFolder returns the user's home folder, or a private folder in the system's temporary folder if there is
// none.
func homeFolder(getenv func(string) string) string {
	for _, name := range []string{"HOME", "USERPROFILE"} {
		if v := getenv(name); filepath.IsAbs(v) {
			return v
		}
	}
	return filepath.Join(temporaryFolder(os.TempDir()), "home")
}

// FolderVariables are the variables by which a program that is started with
// little more than HOME in its environment finds the same folders. Some MCP
// clients start their servers so.
func FolderVariables(getenv func(string) string) map[string]string {
	home := homeFolder(getenv)
	actual := platformFolders(getenv, func(name string, use func(string) error) {
		if v := getenv(name); v != "" {
			use(v) // a mistake is reported where the settings are read
		}
	})
	temporary := "/tmp"
	if runtime.GOOS == "windows" {
		temporary = os.TempDir() // these clients keep its variable
	}
	short := func(string) string { return "" }
	found := map[string]string{}
	for i, folder := range []string{actual.Config, actual.Data, actual.Cache, actual.State, actual.Runtime} {
		p := platform(runtime.GOOS)[i]
		if p.resolveIn(short, home, temporary) != folder {
			found[p.ours] = folder
		}
	}
	return found
}
