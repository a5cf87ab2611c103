package shellpolicy

import (
	"slices"
	"strings"
)

// steering are variables that make an allowed program run another one, or change which program a name means.
var steering = strings.Fields(`
	PATH ENV IFS SHELLOPTS BASHOPTS PS0 PS1 PS4 PROMPT_COMMAND CDPATH FPATH ZDOTDIR SHELL HOME XDG_CONFIG_HOME XDG_CONFIG_DIRS EXECIGNORE GLOBIGNORE HISTFILE
	PAGER MANPAGER EDITOR VISUAL FCEDIT BROWSER LESSOPEN LESSCLOSE LESSKEY LESSKEYIN LESSKEY_CONTENT
	PYTHONPATH PYTHONSTARTUP PYTHONHOME PYTHONINSPECT PYTHONUSERBASE PYTHONBREAKPOINT PYTHONWARNINGS PYTHONEXECUTABLE
	PERL5LIB PERL5OPT PERLLIB PERL5DB RUBYOPT RUBYLIB NODE_OPTIONS NODE_PATH LUA_INIT LUA_PATH LUA_CPATH PHPRC PHP_INI_SCAN_DIR TCLLIBPATH
	JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH MAVEN_OPTS GRADLE_OPTS
	TAR_OPTIONS TAPE RSYNC_RSH CVS_RSH SVN_SSH SSH_ASKPASS SUDO_ASKPASS SUDO_EDITOR
	MAKEFLAGS MFLAGS GNUMAKEFLAGS MAKEFILES CC CXX LD AR RUSTC RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CARGO_BUILD_RUSTC_WRAPPER GOFLAGS GOTOOLCHAIN GOENV GOROOT
	GCONV_PATH LOCPATH NLSPATH HOSTALIASES RES_OPTIONS MALLOC_CHECK_ TERMINFO TERMCAP TZDIR OPENSSL_CONF OPENSSL_ENGINES CURL_HOME WGETRC VIMINIT EXINIT
`)

// Steers reports whether a variable can change what allowed commands do, such as PATH or LD_PRELOAD.
func Steers(name string) bool {
	name = strings.TrimSuffix(strings.ToUpper(name), "+")
	for _, prefix := range []string{"LD_", "DYLD_", "BASH_", "NPM_CONFIG_", "COMP_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	if strings.HasPrefix(name, "GIT_") {
		return !strings.HasPrefix(name, "GIT_AUTHOR_") && !strings.HasPrefix(name, "GIT_COMMITTER_")
	}
	return slices.Contains(steering, name)
}

// Runs reports whether bash would run a command in a variable's value if it evaluates the value as a number or as
// the name of a variable.
func Runs(value string) bool { return subscript().MatchString(value) }
