package system

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"gatehouse/tool"
)

const (
	hostnameName = "org.freedesktop.hostname1"
	localeName   = "org.freedesktop.locale1"
)

func (s *system) nameTools() []daemonTool {
	return []daemonTool{
		reading(s, hostnameName, tool.Def{
			Name: "system_hostname", Title: "Show the names of the machine",
			Description: "Shows the names of the machine, its hardware and its operating system.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (hostnameOut, error) { return s.hostname(ctx) }),
		changing(s, hostnameName, tool.Def{
			Name: "system_set_hostname", Title: "Name the machine",
			Description: "Sets the network name of the machine, or its display name, after the user has agreed.",
		}, askHostname, s.setHostname),
		reading(s, localeName, tool.Def{
			Name: "system_locale", Title: "Show language and keyboard",
			Description: "Shows the language of the machine and the layout of its keyboard.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (localeOut, error) { return s.locale(ctx) }),
		changing(s, localeName, tool.Def{
			Name: "system_set_language", Title: "Set the language of the machine",
			Description: "Sets the locale of the machine, after the user has agreed. Programs use it from their next start.",
			Help:        changeHelp + " server_language is the language in which users of this host want answers.",
		}, askLanguage, s.setLanguage),
		changing(s, localeName, tool.Def{
			Name: "system_set_keyboard", Title: "Set the keyboard layout",
			Aliases:     []string{"server.set-keyboard"},
			Description: "Sets the layout of the machine's keyboard, after the user has agreed.",
			Help:        changeHelp + " The keymap of the console follows from the layout unless it is given.",
		}, askKeyboard, s.setKeyboard),
	}
}

type hostnameOut struct {
	Hostname string `json:"hostname"`
	Static   string `json:"static,omitempty" doc:"kept when the machine is restarted"`
	Name     string `json:"name,omitempty" doc:"display name"`
	Chassis  string `json:"chassis,omitempty"`
	System   string `json:"system,omitempty"`
	Kernel   string `json:"kernel,omitempty"`
	Vendor   string `json:"vendor,omitempty"`
	Model    string `json:"model,omitempty"`
}

func (s *system) hostname(ctx context.Context) (hostnameOut, error) {
	p, err := s.bus.all(ctx, hostnameName, "/org/freedesktop/hostname1", hostnameName)
	return hostnameOut{
		get[string](p, "Hostname"), get[string](p, "StaticHostname"), get[string](p, "PrettyHostname"),
		get[string](p, "Chassis"), get[string](p, "OperatingSystemPrettyName"),
		strings.TrimSpace(get[string](p, "KernelName") + " " + get[string](p, "KernelRelease")),
		get[string](p, "HardwareVendor"), get[string](p, "HardwareModel"),
	}, err
}

type setHostnameIn struct {
	Hostname string  `json:"hostname,omitempty" doc:"letters a to z, digits and -" max:"63"`
	Name     *string `json:"name,omitempty" doc:"display name; an empty one removes it" max:"100"`
	agreed
}

var isHostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func askHostname(_ context.Context, in setHostnameIn) (change, error) {
	switch {
	case in.Hostname == "" && in.Name == nil:
		return change{}, tool.Refuse(tool.CodeInvalidArguments, "nothing is to be set: give hostname or name")
	case in.Hostname != "" && !isHostname.MatchString(in.Hostname):
		return change{}, invalid("hostname", in.Hostname, "letters a to z, digits and - between them")
	case in.Hostname == "":
		return change{*in.Name, fmt.Sprintf("Call this machine %q?", *in.Name)}, nil
	}
	return change{in.Hostname, fmt.Sprintf("Set the network name of this machine to %q?", in.Hostname)}, nil
}

func (s *system) setHostname(ctx context.Context, _ *tool.Call, in setHostnameIn) (hostnameOut, error) {
	set := func(method, value string) error {
		return s.bus.callMethod(ctx, hostnameName, "/org/freedesktop/hostname1", hostnameName+"."+method, value, false).err
	}
	if in.Name != nil {
		if err := set("SetPrettyHostname", *in.Name); err != nil {
			return hostnameOut{}, err
		}
	}
	if in.Hostname != "" {
		if err := set("SetStaticHostname", in.Hostname); err != nil {
			return hostnameOut{}, err
		}
	}
	return s.hostname(ctx)
}

type localeOut struct {
	Locale  []string `json:"locale" doc:"variables such as LANG=en_US.UTF-8"`
	Keymap  string   `json:"keymap,omitempty" doc:"of the console"`
	Layout  string   `json:"layout,omitempty"`
	Model   string   `json:"model,omitempty"`
	Variant string   `json:"variant,omitempty"`
	Options []string `json:"options"`
}

func (s *system) locale(ctx context.Context) (localeOut, error) {
	p, err := s.bus.all(ctx, localeName, "/org/freedesktop/locale1", localeName)
	out := localeOut{
		append(
			[]string{},
			get[[]string](p, "Locale")...), get[string](p, "VConsoleKeymap"), get[string](p, "X11Layout"),
		get[string](p, "X11Model"), get[string](p, "X11Variant"), []string{},
	}
	if options := get[string](p, "X11Options"); options != "" {
		out.Options = strings.Split(options, ",")
	}
	return out, err
}

type setLanguageIn struct {
	Language string `json:"language" doc:"such as en_US or de_DE.UTF-8" min:"1" max:"40"`
	agreed
}

var isLocale = regexp.MustCompile(`^([a-z]{2,3}_[A-Z]{2}(\.[A-Za-z0-9-]+)?(@[a-z]+)?|C(\.UTF-8)?|POSIX)$`)

func askLanguage(_ context.Context, in setLanguageIn) (change, error) {
	if !isLocale.MatchString(in.Language) {
		return change{}, invalid("language", in.Language, "a locale such as en_US")
	}
	return change{in.Language, fmt.Sprintf("Set the language of this machine to %s?", in.Language)}, nil
}

func (s *system) setLanguage(ctx context.Context, _ *tool.Call, in setLanguageIn) (localeOut, error) {
	if !strings.ContainsRune(in.Language, '.') && strings.ContainsRune(in.Language, '_') {
		in.Language += ".UTF-8"
	}
	err := s.bus.callMethod(ctx, localeName, "/org/freedesktop/locale1", localeName+".SetLocale",
		[]string{"LANG=" + in.Language}, false).err
	if err != nil {
		return localeOut{}, err
	}
	return s.locale(ctx)
}

type setKeyboardIn struct {
	Layout  string   `json:"layout" doc:"such as us or de" min:"1" max:"40"`
	Keymap  string   `json:"keymap,omitempty" doc:"of the console" max:"40"`
	Model   string   `json:"model,omitempty" max:"40"`
	Variant string   `json:"variant,omitempty" max:"40"`
	Options []string `json:"options,omitempty" max:"20"`
	agreed
}

var isKeyboard = regexp.MustCompile(`^[A-Za-z0-9_:()+,-]*$`)

func askKeyboard(_ context.Context, in setKeyboardIn) (change, error) {
	for _, f := range [][2]string{{"layout", in.Layout}, {"keymap", in.Keymap}, {"model", in.Model},
		{"variant", in.Variant}, {"options", strings.Join(in.Options, ",")}} {
		if !isKeyboard.MatchString(f[1]) {
			return change{}, invalid(f[0], f[1], "letters, digits and _ : - + ( )")
		}
	}
	return change{in.Layout, fmt.Sprintf("Set the keyboard layout of this machine to %s?", in.Layout)}, nil
}

func (s *system) setKeyboard(ctx context.Context, _ *tool.Call, in setKeyboardIn) (localeOut, error) {
	set := func(method string, args ...any) error {
		return s.bus.callMethod(ctx, localeName, "/org/freedesktop/locale1", localeName+"."+method, args...).err
	}
	err := set("SetX11Keyboard", in.Layout, in.Model, in.Variant, strings.Join(in.Options, ","), in.Keymap == "", false)
	if err == nil && in.Keymap != "" {
		err = set("SetVConsoleKeyboard", in.Keymap, "", false, false)
	}
	if err != nil {
		return localeOut{}, err
	}
	return s.locale(ctx)
}
