package packages

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/internal/access/secret"
)

// Wish is a package as a user asks for it: on a command line, in the settings of
// an MCP client, or in an entry of a registry.
type Wish struct {
	Record
	// Secrets are values that Record.Env refers to and that are not stored yet,
	// by the names of their secrets.
	Secrets map[string]secret.Text
}

// ParseTarget makes a package of the words of a command line. The first word is a
// source as ParseSource reads it, the path of a folder or an archive, or a program;
// the other words are arguments. Words that start a package by npx, uvx or another
// runner become that package, so that it is installed once and in one version.
// env are variables for its server; values that look like secrets are moved to
// Secrets, and the record refers to them.
func ParseTarget(id string, words []string, env map[string]string) (w Wish, err error) {
	w.ID, w.Start = id, OnDemand
	if len(words) == 0 || words[0] == "" {
		return w, fmt.Errorf(
			"the target is missing: expected npm:NAME, a folder, an archive, or a program with arguments",
		)
	}
	if ran, ok, e := runnerPackage(words); e != nil {
		return w, e
	} else if ok {
		w.Source, w.Command, w.Args, w.Image = ran.source, ran.command, ran.args, ran.image
		env = ran.with(env)
	} else if w.Source, w.Command, w.Args, err = parseWords(words); err != nil {
		return w, err
	}
	w.Env, w.Secrets = SplitSecrets(id, env)
	return w, w.checkRecord()
}

func parseWords(words []string) (s Source, command string, args []string, err error) {
	first, rest := words[0], words[1:]
	switch {
	case first == Command && len(rest) > 0:
		return Source{Kind: Command}, rest[0], rest[1:], nil
	case IsSource(first):
		s, err = ParseSource(first)
		return s, "", rest, err
	case isAddress(first) || strings.HasPrefix(first, socketScheme):
		return Source{URL, first}, "", rest, nil
	case strings.HasPrefix(first, "@") && npmName().MatchString(first):
		return Source{NPM, first}, "", rest, nil
	}
	path := first
	if home, e := os.UserHomeDir(); e == nil && strings.HasPrefix(path, "~/") {
		path = filepath.Join(home, path[2:])
	}
	if info, e := os.Stat(path); e == nil && strings.ContainsRune(path, os.PathSeparator) || first == "." {
		switch {
		case info.IsDir():
			return Source{Folder, path}, "", rest, nil
		case bundleName().MatchString(path):
			return Source{Bundle, path}, "", rest, nil
		case archiveName().MatchString(path):
			return Source{Archive, path}, "", rest, nil
		}
	}
	return Source{Kind: Command}, first, rest, nil
}

var archiveName = lazy(`(?i)\.(tgz|tar\.gz|tar|zip)$`)

var bundleName = lazy(`(?i)\.(mcpb|dxt)$`)

// SetHeaders sets the headers of requests to a remote server. Values that look like
// secrets are moved to Secrets, and the record refers to them.
func (w *Wish) SetHeaders(headers map[string]string) error {
	var found map[string]secret.Text
	w.Headers, found = SplitSecrets(w.ID, headers)
	if len(found) > 0 && w.Secrets == nil {
		w.Secrets = map[string]secret.Text{}
	}
	maps.Copy(w.Secrets, found)
	return w.checkRecord()
}

// SplitSecrets takes the values that look like secrets out of an environment. The
// returned environment refers to them by the names that SecretName makes.
func SplitSecrets(id string, env map[string]string) (plain map[string]string, secrets map[string]secret.Text) {
	if len(env) == 0 {
		return nil, nil
	}
	plain = maps.Clone(env)
	for name, value := range env {
		if refers, err := secret.Names(value); err != nil || len(refers) > 0 || !secret.Suspicious(name, value) {
			continue
		}
		if secrets == nil {
			secrets = map[string]secret.Text{}
		}
		called := SecretName(id, name)
		secrets[called], plain[name] = secret.New(value), SecretReference(called)
	}
	return plain, secrets
}

// SecretName is the name of the secret for a variable of a package. It begins with
// the id, so that packages that call their variables alike do not share a secret.
func SecretName(id, variable string) string {
	before := strings.ToUpper(prefix(id)) + "_"
	name := strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, strings.ToUpper(variable))
	if strings.HasPrefix(name, before) {
		return name
	}
	return before + name
}

// SecretReference is how an environment refers to a secret.
func SecretReference(name string) string { return "${secret:" + name + "}" }
