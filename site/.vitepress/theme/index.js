import DefaultTheme from "vitepress/theme";
import { defineAsyncComponent } from "vue";
import LangTabs from "./LangTabs.vue";
import Layout from "./Layout.vue";
import "./style.css";

export default {
  extends: DefaultTheme,
  Layout,
  enhanceApp({ app }) {
    app.component("LangTabs", LangTabs);
    app.component(
      "Playground",
      defineAsyncComponent(() => import("./Playground.vue")),
    );
  },
};
